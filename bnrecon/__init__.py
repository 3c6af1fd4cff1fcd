"""Rebuild trained networks from frozen random convolutions by their normalization parameters."""

from typing import TYPE_CHECKING

from bnrecon.runtime.lazy import import_on_use

if TYPE_CHECKING:
    from bnrecon.data.register import register_data as register_data
    from bnrecon.features import FeatureSpec as FeatureSpec
    from bnrecon.features import register_features as register_features
    from bnrecon.reconstruction import Reconstruction as Reconstruction
    from bnrecon.reconstruction import assemble as assemble
    from bnrecon.reconstruction import plan_layers as plan_layers
    from bnrecon.reconstruction import reconstruct as reconstruct
    from bnrecon.reconstruction import solve_layer as solve_layer
    from bnrecon.reconstruction import solve_layers as solve_layers
    from bnrecon.reconstruction.source_file import collapse as collapse
    from bnrecon.reconstruction.source_file import load_source as load_source
    from bnrecon.reporting.stored_target import load_target as load_target
    from bnrecon.runtime.malloc import keep_freed_memory as keep_freed_memory
    from bnrecon.solvers import SolverSpec as SolverSpec
    from bnrecon.solvers import register_solver as register_solver
    from bnrecon.studies.results import reported as reported
    from bnrecon.studies.results import results as results
    from bnrecon.targets.register import register_target as register_target

__getattr__, __dir__, __all__ = import_on_use(__name__)
