"""Public names of a package, imported on first use: help and completion need no torch."""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Callable
from typing import Any


def import_on_use(package: str) -> Callable[[str], Any]:
    """Make a package's ``__getattr__`` (PEP 562) from its imports under ``TYPE_CHECKING``.

    >>> import_on_use("bnrecon.features")("draw").__name__
    'draw'
    """

    def __getattr__(name: str) -> Any:
        if (module := _modules(package).get(name)) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module), name)

    return __getattr__


@functools.cache
def _modules(package: str) -> dict[str, str]:
    """The module of each name in the imports for type checkers."""
    spec: Any = importlib.import_module(package).__spec__
    blocks = ast.parse(spec.loader.get_source(package)).body
    checked = [node for block in blocks if isinstance(block, ast.If) for node in block.body]
    imports = [node for node in checked if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
