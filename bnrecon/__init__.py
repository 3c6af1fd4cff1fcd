"""Rebuild trained networks from frozen random convolutions by their normalization parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bnrecon.runtime.lazy import import_on_use

if TYPE_CHECKING:
    from bnrecon.features import FeatureSpec, register_features
    from bnrecon.reconstruction import (
        Reconstruction,
        assemble,
        plan_layers,
        reconstruct,
        solve_layer,
    )
    from bnrecon.reconstruction.source_file import collapse, load_source
    from bnrecon.runtime.malloc import keep_freed_memory
    from bnrecon.solvers import SolverSpec, register_solver
    from bnrecon.targets.register import register_target

__all__ = [
    "FeatureSpec",
    "Reconstruction",
    "SolverSpec",
    "assemble",
    "collapse",
    "keep_freed_memory",
    "load_source",
    "plan_layers",
    "reconstruct",
    "register_features",
    "register_solver",
    "register_target",
    "solve_layer",
]

__getattr__ = import_on_use(
    __name__,
    {
        "FeatureSpec": "features",
        "Reconstruction": "reconstruction",
        "SolverSpec": "solvers",
        "assemble": "reconstruction",
        "collapse": "reconstruction.source_file",
        "keep_freed_memory": "runtime.malloc",
        "load_source": "reconstruction.source_file",
        "plan_layers": "reconstruction",
        "reconstruct": "reconstruction",
        "register_features": "features",
        "register_solver": "solvers",
        "register_target": "targets.register",
        "solve_layer": "reconstruction",
    },
)
