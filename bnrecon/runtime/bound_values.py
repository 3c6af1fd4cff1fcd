"""What a function and the values bound to it are, described alike in every process."""

from __future__ import annotations

import copyreg
import functools
import operator
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bnrecon.runtime.digests import tensor_digest
from bnrecon.runtime.source_files import UserSources, module_name

__all__ = ["IndescribableError", "ValueDescriber"]


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


class IndescribableError(Exception):
    """A value that cannot be described alike in every process, such as a lock."""


class ValueDescriber:
    """Describes values by nested tuples of strings; adds user code's files to ``sources``."""

    def __init__(self, sources: UserSources) -> None:
        self.sources = sources
        self._seen: list[Any] = []  # functions and classes described so far
        self._by_kind = {
            tuple: self._sequence,
            list: self._sequence,
            dict: lambda value: self._sequence(value, value.items()),
            set: self._set,
            frozenset: self._set,
            types.ModuleType: self._module,
            types.MethodType: self._method,
            types.CodeType: self._code,
            functools._lru_cache_wrapper: lambda value: (
                "cached",
                self._describe(value.__wrapped__),
            ),
        }

    def describe(self, value: Any) -> Any:
        """Describe a value.

        Raises:
            IndescribableError: it cannot be compared between processes.
        """
        self._seen = []
        try:
            return self._describe(value)
        except RecursionError:
            raise IndescribableError(f"a {type(value).__name__} that holds itself") from None

    def _describe(self, value: Any) -> Any:
        kind = type(value)
        if kind in ATOMS:
            return repr(value)
        if kind in self._by_kind:
            return self._by_kind[kind](value)
        if isinstance(value, types.FunctionType | type):
            return self._named(value)
        return self._object(value)

    def _sequence(self, value: Any, items: Any = None) -> Any:
        return (type(value).__name__, *map(self._describe, value if items is None else items))

    def _set(self, value: set | frozenset) -> Any:
        """Elements have no order: each is described as if it stood alone, then they are sorted."""
        return (type(value).__name__, *sorted(repr(self._apart(item)) for item in value))

    def _apart(self, value: Any) -> Any:
        held, self._seen = self._seen, list(self._seen)
        try:
            return self._describe(value)
        finally:
            self._seen = held

    def _module(self, value: types.ModuleType) -> Any:
        self.sources.add_imported(value.__name__)
        return ("module", value.__name__)

    def _method(self, value: types.MethodType) -> Any:
        return ("method", self._describe(value.__func__), self._describe(value.__self__))

    def _code(self, value: types.CodeType) -> Any:
        return ("code", *map(self._describe, (getattr(value, part) for part in COMPILED)))

    def _object(self, value: Any) -> Any:
        """Any other object: by its bytes if it is a tensor, otherwise as pickle takes it apart."""
        kind = type(value)
        try:
            if isinstance(value, torch.Tensor):
                return (kind.__name__, tensor_digest({"": value}))
            reduce = copyreg.dispatch_table.get(kind, lambda value: value.__reduce_ex__(4))
            reduced = reduce(value)
        except Exception:  # whatever a class raises that cannot be taken apart
            raise IndescribableError(f"a {kind.__module__}.{kind.__qualname__}") from None
        if isinstance(reduced, str):
            return (kind.__qualname__, getattr(value, "__module__", ""), reduced)
        function, arguments, state, *items = (*reduced, None, None, None)[:5]
        lists = (None if part is None else list(part) for part in items)
        return ("object", *map(self._describe, (function, arguments, state, *lists)))

    def _named(self, value: types.FunctionType | type) -> Any:
        """A function or class: its name, and where that is not all, what it is made of."""
        for number, known in enumerate(self._seen):
            if known is value:
                return ("known", number)
        self._seen.append(value)
        return (
            self._function(value) if isinstance(value, types.FunctionType) else self._class(value)
        )

    def _class(self, value: type) -> Any:
        space = _space(value)
        file, name = space.get("__file__"), (module_name(space), value.__qualname__)
        if not self.sources.is_user_code(file, space.get("__spec__")):
            return name
        if file is not None and Path(file).is_file():
            self.sources.add_module(space, Path(file).absolute())
            return name
        return (*name, self._describe(value.__bases__), *self._members(value))

    def _function(self, value: types.FunctionType) -> Any:
        space, file = value.__globals__, value.__code__.co_filename
        name, has_file = (module_name(space), value.__qualname__), Path(file).is_file()
        origin = file if has_file else space.get("__file__")
        if self.sources.is_user_code(origin, space.get("__spec__")):
            if has_file:
                self.sources.add_module(space, Path(file).absolute())
        elif _is_found(value, *name):
            return name
        cells = [_content(cell) for cell in value.__closure__ or ()]
        bound = self._describe((cells, value.__defaults__, value.__kwdefaults__))
        if has_file:
            return (*name, bound)
        return (*name, bound, self._describe(value.__code__), *self._globals(value))

    def _members(self, value: type) -> Iterator[Any]:
        """Methods and variables of a class, without what Python adds."""
        for name, part in sorted(vars(value).items()):
            if isinstance(part, staticmethod | classmethod | property | functools.cached_property):
                inner = ("__func__", "fget", "func")
                part = next(getattr(part, key) for key in inner if hasattr(part, key))
            if isinstance(part, types.FunctionType) or not name.startswith(("__", "_abc_")):
                yield name, self._describe(part)

    def _globals(self, function: types.FunctionType) -> Iterator[Any]:
        """The values of the global names that a function uses."""
        for name in sorted(_names(function.__code__) & function.__globals__.keys()):
            yield name, self._describe(function.__globals__[name])


def _is_found(value: types.FunctionType | type, module: str, qualified: str) -> bool:
    """Whether a function or class is found under its name: one made by a function is not."""
    try:
        return operator.attrgetter(qualified)(sys.modules[module]) is value
    except (KeyError, AttributeError):
        return False


def _space(kind: type) -> dict[str, Any]:
    """The global names of a class's module; only its name where it does not hold the class."""
    module = kind.__module__
    if _is_found(kind, module, kind.__qualname__):
        return vars(sys.modules[module])
    return {"__name__": module}


def _content(cell: types.CellType) -> Any:
    """What a variable of a surrounding function holds; ``...`` where it has not been set yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return Ellipsis


def _names(code: types.CodeType) -> set[str]:
    """All names that compiled code uses, the functions inside it included."""
    inner = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))
