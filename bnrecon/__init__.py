"""Rebuild trained networks from frozen random convolutions by their normalization parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bnrecon.runtime.lazy import import_on_use

if TYPE_CHECKING:
    from bnrecon.data.register import register_data
    from bnrecon.features import FeatureSpec, register_features
    from bnrecon.reconstruction import (
        Reconstruction,
        assemble,
        plan_layers,
        reconstruct,
        solve_layer,
        solve_layers,
    )
    from bnrecon.reconstruction.source_file import collapse, load_source
    from bnrecon.reporting.stored_target import load_target
    from bnrecon.runtime.malloc import keep_freed_memory
    from bnrecon.solvers import SolverSpec, register_solver
    from bnrecon.studies.results import reported, results
    from bnrecon.targets.register import register_target

__all__ = [
    "FeatureSpec",
    "Reconstruction",
    "SolverSpec",
    "assemble",
    "collapse",
    "keep_freed_memory",
    "load_source",
    "load_target",
    "plan_layers",
    "reconstruct",
    "register_data",
    "register_features",
    "register_solver",
    "register_target",
    "reported",
    "results",
    "solve_layer",
    "solve_layers",
]

__getattr__ = import_on_use(__name__)


def __dir__() -> list[str]:
    return __all__
