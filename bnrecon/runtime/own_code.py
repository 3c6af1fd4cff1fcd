"""A user's registered code: a fingerprint by which results of other code are told apart, and whose fault an exception is."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bnrecon.runtime.errors import Interrupted, RunError, UserError

__all__ = ["blamed", "fingerprint", "is_own"]


PACKAGE = Path(__file__).parent.parent


INSTALLED = tuple({Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def is_own(value: Any) -> bool:
    """Whether a function, class or module is a user's: neither bnrecon's nor an installed package's.

    >>> is_own(is_own), is_own(functools.partial)
    (False, False)
    """
    name = getattr(value, "__module__", None) or getattr(value, "__name__", "")
    if isinstance(value, types.ModuleType):
        name = value.__name__
    if name in sys.builtin_module_names:
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is None or not any(Path(file).is_relative_to(folder) for folder in (PACKAGE, *INSTALLED))


def fingerprint(function: Callable, version: str | None = None) -> str | None:
    """Hash what a user's function computes, to ten hexadecimal digits; ``None`` for bnrecon's own.

    Its source counts, and that of the user's functions, classes and modules and the plain constants that it names, and so on. With
    a ``version`` that alone does: to be changed when what is computed changes.

    >>> fingerprint(fingerprint) is None, len(fingerprint(len, version="2"))
    (True, 10)
    """
    if version is not None:
        return hashlib.sha256(f"version {version}".encode()).hexdigest()[:10]
    return _hashed(function) if is_own(function) else None


@functools.cache
def _hashed(function: Callable) -> str:
    found: dict[str, str] = {}
    left: list[Any] = [function]
    while left:
        value = left.pop()
        if isinstance(value, functools.partial):
            left.append(value.func)
            found[f"partial {value.func!r}"] = repr((value.args, value.keywords))
            continue
        name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', getattr(value, '__name__', repr(value)))}"
        if name in found:
            continue
        found[name] = _source(value)
        if isinstance(value, type):
            left += [base for base in value.__bases__ if is_own(base)]
        for code, names in _parts(value):
            for word in _words(code):
                if word not in names:
                    continue
                used = names[word]
                if isinstance(used, types.FunctionType | type | types.ModuleType | functools.partial):
                    if is_own(used):
                        left.append(used)
                elif isinstance(used, int | float | complex | str | bytes | bool | tuple | list | dict | None):
                    found[f"{name} {word}"] = repr(used)
    text = "\n".join(f"{name}\n{source}" for name, source in sorted(found.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _source(value: Any) -> str:
    """Source of a function, class or module; of what has none, typed in say, the compiled code."""
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return "\n".join(f"{code.co_code.hex()} {_constants(code)}" for code, _ in _parts(value))


def _constants(code: types.CodeType) -> list:
    return [part.co_code.hex() if isinstance(part, types.CodeType) else repr(part) for part in code.co_consts]


def _parts(value: Any) -> Iterator[tuple[types.CodeType, dict[str, Any]]]:
    """The compiled functions of a function or class, each with the values that its names have."""
    functions = [value] if isinstance(value, types.FunctionType) else []
    if isinstance(value, type):
        members = [getattr(part, "__func__", getattr(part, "fget", part)) for part in vars(value).values()]
        functions = [part for part in members if isinstance(part, types.FunctionType)]
    for part in functions:
        part = inspect.unwrap(part)
        yield part.__code__, inspect.getclosurevars(part).nonlocals | part.__globals__


def _words(code: types.CodeType) -> set[str]:
    """All names that a piece of compiled code uses, functions inside it included."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return {*code.co_names, *code.co_freevars}.union(*(_words(part) for part in inner))


@contextlib.contextmanager
def blamed(what: str) -> Iterator[None]:
    """Turn whatever a user's code raises into one line that names it and the place: ``what: ValueError: … (file:line)``.

    Raises ``UserError``; bnrecon's own errors, and memory that does not suffice, pass.
    """
    try:
        yield
    except (UserError, RunError, Interrupted, MemoryError):
        raise
    except Exception as error:
        if "out of memory" in str(error):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        folders = (PACKAGE, *INSTALLED)
        own = [frame for frame in frames if not any(Path(frame.filename).is_relative_to(folder) for folder in folders)]
        where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
        first = " ".join((str(error).splitlines() or [""])[0].split())[:300]
        raise UserError(f"{what}: {type(error).__name__}: {first}{where}") from None
