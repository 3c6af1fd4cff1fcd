"""Public names of a package, imported on first use: help and completion need no torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def import_on_use(package: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Make a module's ``__getattr__`` (PEP 562) from submodules and the names that they define.

    >>> import_on_use("bnrecon.features", {"shapes": ["LayerShape"]})("LayerShape").__name__
    'LayerShape'
    """

    def __getattr__(name: str) -> Any:
        for submodule, defined in names.items():
            if name in defined:
                return getattr(importlib.import_module(f"{package}.{submodule}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return __getattr__
