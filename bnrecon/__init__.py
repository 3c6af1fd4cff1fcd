"""Rebuild trained networks from frozen random convolutions by their normalization parameters alone."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bnrecon.features import register_features
    from bnrecon.reconstruction import Reconstruction, reconstruct
    from bnrecon.reconstruction.source_file import collapse, load_source
    from bnrecon.solvers import register_solver
    from bnrecon.targets.models import register_target

__all__ = [
    "Reconstruction",
    "collapse",
    "load_source",
    "reconstruct",
    "register_features",
    "register_solver",
    "register_target",
]

_HOMES = {
    "Reconstruction": "reconstruction",
    "reconstruct": "reconstruction",
    "collapse": "reconstruction.source_file",
    "load_source": "reconstruction.source_file",
    "register_features": "features",
    "register_solver": "solvers",
    "register_target": "targets.models",
}


def __getattr__(name: str):
    """Import on first use: tab completion and --help need no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'bnrecon' has no attribute {name!r}")
    return getattr(importlib.import_module(f"bnrecon.{_HOMES[name]}"), name)
