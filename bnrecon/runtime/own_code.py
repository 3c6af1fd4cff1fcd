"""A user's registered code: its fingerprint, which tells results apart, and its exceptions."""

from __future__ import annotations

import ast
import contextlib
import copyreg
import functools
import hashlib
import importlib.util
import operator
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import torch

from bnrecon.runtime.digests import tensor_digest
from bnrecon.runtime.errors import Interrupted, RunError, UserError

__all__ = ["Registered", "blamed"]


PACKAGE = Path(__file__).absolute().parent.parent


PYTHON = tuple({Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib")})


INSTALLED = {"site-packages", "dist-packages"}


COMPILED = (
    "co_code",
    "co_consts",
    "co_names",
    "co_varnames",
    "co_freevars",
    "co_flags",
    "co_argcount",
    "co_kwonlyargcount",
    "co_posonlyargcount",
    "co_exceptiontable",
)


ATOMS = (types.NoneType, types.EllipsisType, bool, int, float, complex, str, bytes)


class Registered:
    """A function under a name that options accept, and the module that registered it.

    It is the user's own, unless a module of bnrecon registers it. To be made in the function
    that the module calls.

    >>> Registered("features he_normal", len).own
    True
    """

    def __init__(self, what: str, function: Callable, version: str | None = None):
        caller = sys._getframe(2)  # of whom the decorator was called
        file = Path(caller.f_code.co_filename).absolute()
        self.what, self.function, self.version = what, function, version
        self.own = not file.is_relative_to(PACKAGE)
        self._description = _Description(file)
        if self.own and version is None:  # now, as long as the files are those that were imported
            self._description.add_module(caller.f_globals, file)

    def wrote(self, filename: str) -> bool:
        """Whether a line of a traceback is of the user's code."""
        return self._description.wrote(filename)

    @functools.cached_property
    def fingerprint(self) -> str | None:
        """A hash of what the function computes, ten hexadecimal digits; ``None`` for bnrecon's own.

        It covers the source files of the module that registered the function and of the user's
        modules that it imports, and so on, as they were at that time. A changed comment is a change.
        It covers the values that are bound to the function too: arguments of a ``partial``,
        variables of the functions around it, defaults, the state of a callable object. Code without
        a file, typed in say, counts as it was compiled, with all that it names. Installed packages,
        files and environment variables that the code reads, and modules imported by a computed name
        do not count. With a ``version`` that alone does: to be changed when what is computed changes.

        Raises ``UserError`` for bound values that cannot be compared between processes, a lock say.

        >>> len(Registered("features mine", len, version="2").fingerprint)
        10
        """
        if not self.own:
            return None
        if self.version is not None:
            content = f"version {self.version}"
        else:
            try:
                described = self._description.of(self.function)
            except _Indescribable as error:
                raise UserError(
                    f"{self.what}: its code holds {error}, which cannot be compared between processes; register it with "
                    'version="1", and change the version when what it computes changes'
                ) from None
            content = repr((described, sorted(self._description.sources.items())))
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:10]


class _Indescribable(Exception):
    """A value of which nothing can be said that holds in every process."""


class _Description:
    """What values are, in the same words in every process, and the digests of their sources."""

    def __init__(self, registering: Path):
        self.home = _installation(registering)
        self.sources: dict[str, str] = {}
        self._named: list[Any] = []  # functions and classes described so far

    def of(self, value: Any) -> Any:
        """Describe a value by nested tuples of words. Raises ``_Indescribable``."""
        self._named = []
        try:
            return self._of(value)
        except RecursionError:
            raise _Indescribable(f"a {type(value).__name__} that holds itself") from None

    def _of(self, value: Any) -> Any:
        kind = type(value)
        if kind in ATOMS:
            return repr(value)
        if kind in (tuple, list, dict):
            items = value.items() if kind is dict else value
            return (kind.__name__, *map(self._of, items))
        if kind in (set, frozenset):
            return (kind.__name__, *sorted(repr(self._apart(item)) for item in value))
        if isinstance(value, types.FunctionType | type):
            return self._of_named(value)
        if kind is types.ModuleType:
            self._add_imported(value.__name__)
            return ("module", value.__name__)
        if kind is types.MethodType:
            return ("method", self._of(value.__func__), self._of(value.__self__))
        if kind is types.CodeType:
            return ("code", *map(self._of, (getattr(value, part) for part in COMPILED)))
        if kind is functools._lru_cache_wrapper:
            return ("cached", self._of(value.__wrapped__))
        try:
            if isinstance(value, torch.Tensor):
                return (kind.__name__, tensor_digest({"": value}))
            reduced = copyreg.dispatch_table.get(kind, lambda value: value.__reduce_ex__(4))(value)
        except Exception:  # whatever a class raises that cannot be taken apart
            raise _Indescribable(f"a {kind.__module__}.{kind.__qualname__}") from None
        if isinstance(reduced, str):
            return (kind.__qualname__, getattr(value, "__module__", ""), reduced)
        function, arguments, state, *items = (*reduced, None, None, None)[:5]
        return (
            "object",
            *map(
                self._of,
                (
                    function,
                    arguments,
                    state,
                    *(None if part is None else list(part) for part in items),
                ),
            ),
        )

    def _apart(self, value: Any) -> Any:
        """Describe a value as though it stood alone: elements of a set have no order."""
        held, self._named = self._named, list(self._named)
        try:
            return self._of(value)
        finally:
            self._named = held

    def _of_named(self, value: types.FunctionType | type) -> Any:
        """A function or class: its name, and where that does not say all, what it is made of."""
        for number, known in enumerate(self._named):
            if known is value:
                return ("known", number)
        self._named.append(value)
        function = isinstance(value, types.FunctionType)
        space = value.__globals__ if function else _space(value)
        file = value.__code__.co_filename if function else space.get("__file__")
        has_file = file is not None and Path(file).is_file()
        name = (_module_name(space), value.__qualname__)
        if not self._is_own(file if has_file else space.get("__file__"), space.get("__spec__")):
            if not function or _is_found(value, *name):
                return name
        elif has_file:
            self.add_module(space, Path(file).absolute())
        if not function:
            return name if has_file else (*name, self._of(value.__bases__), *self._members(value))
        cells = [_content(cell) for cell in value.__closure__ or ()]
        bound = self._of((cells, value.__defaults__, value.__kwdefaults__))
        return (
            (*name, bound)
            if has_file
            else (*name, bound, self._of(value.__code__), *self._globals(value))
        )

    def _members(self, value: type) -> Iterator[Any]:
        """Methods and variables of a class, without what Python adds."""
        for name, part in sorted(vars(value).items()):
            if isinstance(part, staticmethod | classmethod | property | functools.cached_property):
                part = next(
                    getattr(part, inner)
                    for inner in ("__func__", "fget", "func")
                    if hasattr(part, inner)
                )
            if isinstance(part, types.FunctionType) or not name.startswith(("__", "_abc_")):
                yield name, self._of(part)

    def _globals(self, function: types.FunctionType) -> Iterator[Any]:
        """The values of the global names that a function uses."""
        for name in sorted(_names(function.__code__) & function.__globals__.keys()):
            yield name, self._of(function.__globals__[name])

    def _is_own(self, file: str | None, spec: ModuleSpec | None = None) -> bool:
        """Whether code is a user's: not of bnrecon or Python, nor installed.

        What is installed together with the module that registers is a user's all the same. Without a
        file it is Python's if it was imported, and otherwise typed in.
        """
        if file is None:
            return spec is None
        path = Path(file).absolute()
        if not INSTALLED.isdisjoint(path.parts):
            return path.is_relative_to(self.home)
        return not any(path.is_relative_to(folder) for folder in (PACKAGE, *PYTHON))

    def wrote(self, filename: str) -> bool:
        """Whether a line of a traceback is a user's."""
        return not filename.startswith("<frozen ") and self._is_own(filename)

    def add_module(self, space: dict[str, Any], file: Path) -> None:
        """Add the source of a module, given by its global names, and of what it imports."""
        parent = space.get("__package__") or ""
        self._add(_module_name(space), file, parent)
        self._add_imported(parent)

    def _add_imported(self, module: str) -> None:
        """Add the sources of a module and of the packages that it is in, as far as they are own."""
        words = module.split(".")
        for name in (".".join(words[: count + 1]) for count in range(len(words))):
            if not name or name in self.sources:
                continue
            if (spec := _spec(name)) is None:
                return
            if spec.has_location:
                if not self._is_own(spec.origin):
                    return
                package = (
                    name.rpartition(".")[0] if spec.submodule_search_locations is None else name
                )
                self._add(name, Path(spec.origin).absolute(), package)

    def _add(self, name: str, file: Path, package: str) -> None:
        if name in self.sources or not file.is_file():
            return
        text = file.read_bytes()
        self.sources[name] = hashlib.sha256(text).hexdigest()
        for module in _imports(text, package):
            self._add_imported(module)


def _installation(file: Path) -> Path:
    """The package, or lone file, that an installed file is part of; any other file itself."""
    inside = [number for number, part in enumerate(file.parts) if part in INSTALLED]
    return Path(*file.parts[: inside[-1] + 2]) if inside else file


def _module_name(space: dict[str, Any]) -> str:
    """A module's name, the same whether it is imported or started."""
    name, spec, file = (space.get(key) for key in ("__name__", "__spec__", "__file__"))
    if name != "__main__":
        return str(name)
    return spec.name if spec else Path(file).stem if file else name


def _spec(name: str) -> ModuleSpec | None:
    """Where a module comes from, without importing anything; ``None`` for one that is not found."""
    if (spec := getattr(sys.modules.get(name), "__spec__", None)) is not None:
        return spec
    parent, _, last = name.rpartition(".")
    if parent:
        above = _spec(parent)
        places = None if above is None else above.submodule_search_locations
        return None if places is None else PathFinder.find_spec(last, places)
    for finder in sys.meta_path:
        with contextlib.suppress(ImportError, AttributeError):
            if (spec := finder.find_spec(name, None)) is not None:
                return spec
    return None


@functools.lru_cache(maxsize=1024)
def _imports(text: bytes, package: str) -> tuple[str, ...]:
    """Names of all modules that a source may import, in functions too.

    A name imported from a module may be a module.
    """
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # compiled, or broken: its bytes alone count
        return ()
    found = []
    for node in nodes:
        match node:
            case ast.Import(names=names):
                found += [alias.name for alias in names]
            case ast.ImportFrom(module=module, names=names, level=level):
                module = "." * level + (module or "")
                inside = module if module.endswith(".") else f"{module}."
                found += [module, *(f"{inside}{alias.name}" for alias in names)]
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                found.append(module)
    absolute = []
    for module in found:
        with contextlib.suppress(ImportError):  # beyond the top-level package: not imported either
            absolute.append(importlib.util.resolve_name(module, package))
    return tuple(dict.fromkeys(absolute))


def _is_found(value: types.FunctionType | type, module: str, qualified: str) -> bool:
    """Whether a function or class is what its name says, and not made by another function."""
    with contextlib.suppress(KeyError, AttributeError):
        return operator.attrgetter(qualified)(sys.modules[module]) is value
    return False


def _space(kind: type) -> dict[str, Any]:
    """The global names of a class's module; its name alone where it does not have the class."""
    module = kind.__module__
    return (
        vars(sys.modules[module])
        if _is_found(kind, module, kind.__qualname__)
        else {"__name__": module}
    )


def _content(cell: types.CellType) -> Any:
    """What a variable of a surrounding function holds; ``...`` where it has not been set yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return Ellipsis


def _names(code: types.CodeType) -> set[str]:
    """All names that a piece of compiled code uses, functions inside it included."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


@contextlib.contextmanager
def blamed(registered: Registered) -> Iterator[None]:
    """Turn whatever a user's code raises into one line: ``what: ValueError: … (file:line)``.

    Raises ``UserError``. bnrecon's own errors, memory that does not suffice, and whatever functions
    that bnrecon itself registered raise, pass.
    """
    try:
        yield
    except (UserError, RunError, Interrupted, MemoryError):
        raise
    except Exception as error:
        if not registered.own or "out of memory" in str(error):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if registered.wrote(frame.filename)]
        where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
        first = " ".join((str(error).splitlines() or [""])[0].split())[:300]
        raise UserError(f"{registered.what}: {type(error).__name__}: {first}{where}") from None
