"""The source files that a user's code comes from: a module's own, and those that it imports."""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import importlib.util
import sys
import sysconfig
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

__all__ = ["PACKAGE", "UserSources", "module_name"]


PACKAGE = Path(__file__).absolute().parent.parent


PYTHON = tuple({Path(sysconfig.get_paths()[name]) for name in ("stdlib", "platstdlib")})


INSTALLED = {"site-packages", "dist-packages"}


class UserSources:
    """Digests of a user's source files, by module: of what is added, and of what that imports.

    Args:
        file: the file of the module that registers something. What is installed together with it
            is the user's code too.
    """

    def __init__(self, file: Path) -> None:
        self.home = _installation(file)
        self.digests: dict[str, str] = {}

    def is_user_code(self, file: str | None, spec: ModuleSpec | None = None) -> bool:
        """Whether code is not bnrecon's, not Python's, and not in another installed package.

        Code without a file is Python's if it was imported, and otherwise typed in.
        """
        if file is None:
            return spec is None
        path = Path(file).absolute()
        if not INSTALLED.isdisjoint(path.parts):
            return path.is_relative_to(self.home)
        return not any(path.is_relative_to(folder) for folder in (PACKAGE, *PYTHON))

    def add_module(self, space: dict[str, Any], file: Path) -> None:
        """Add the source of a module, given by its global names, and of what it imports."""
        parent = space.get("__package__") or ""
        self._add(module_name(space), file, parent)
        self.add_imported(parent)

    def add_imported(self, module: str) -> None:
        """Add the sources of a module and of the packages that contain it, as far as user code."""
        parts = module.split(".")
        for name in (".".join(parts[: count + 1]) for count in range(len(parts))):
            if not name or name in self.digests:
                continue
            if (spec := _spec(name)) is None:
                return
            if spec.has_location and spec.origin is not None:
                if not self.is_user_code(spec.origin):
                    return
                is_module = spec.submodule_search_locations is None
                package = name.rpartition(".")[0] if is_module else name
                self._add(name, Path(spec.origin).absolute(), package)

    def _add(self, name: str, file: Path, package: str) -> None:
        if name in self.digests or not file.is_file():
            return
        text = file.read_bytes()
        self.digests[name] = hashlib.sha256(text).hexdigest()
        for module in _imports(text, package):
            self.add_imported(module)


def _installation(file: Path) -> Path:
    """The package, or single file, that an installed file is part of; any other file itself."""
    inside = [number for number, part in enumerate(file.parts) if part in INSTALLED]
    return Path(*file.parts[: inside[-1] + 2]) if inside else file


def module_name(space: dict[str, Any]) -> str:
    """A module's name from its global names, the same whether it is imported or started."""
    name, spec, file = (space.get(key) for key in ("__name__", "__spec__", "__file__"))
    if name != "__main__":
        return str(name)
    return spec.name if spec else Path(file).stem if file else name


def _spec(name: str) -> ModuleSpec | None:
    """Where a module comes from, without importing it; ``None`` if it is not found."""
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
    """Names of all modules that a source may import, inside functions too.

    A name that is imported from a module may be a module.
    """
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):  # compiled, or broken: only its bytes count
        return ()
    found: list[str] = []
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
