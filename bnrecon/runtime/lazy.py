"""Public names of a package, imported on first use: help and completion need no torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["import_on_use"]


def import_on_use(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Make a module's ``__getattr__`` (PEP 562) from names and the submodules that define them.

    >>> import_on_use("bnrecon.features", {"LayerShape": "shapes"})("LayerShape").__name__
    'LayerShape'
    """

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    return __getattr__
