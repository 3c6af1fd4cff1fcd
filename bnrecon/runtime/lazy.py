"""Public names of a package, imported on first use: help and completion need no torch."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from typing import Any


def import_on_use(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make a package's ``__getattr__``, ``__dir__`` (PEP 562) and ``__all__`` from its imports.

    Public are the names imported as themselves, ``import X as X`` (PEP 484); those under
    ``TYPE_CHECKING`` are imported on first use.

    >>> import_on_use("bnrecon.features")[0]("draw").__name__
    'draw'
    """
    spec: Any = importlib.import_module(package).__spec__
    nodes = ast.walk(ast.parse(spec.loader.get_source(package)))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    modules = {name.asname: str(node.module) for node in imports for name in node.names}

    def __getattr__(name: str) -> Any:
        if (module := modules.get(name)) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)

    names = sorted(filter(None, modules))
    return __getattr__, lambda: names, names
