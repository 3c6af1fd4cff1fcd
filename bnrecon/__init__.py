"""Rebuild trained networks from frozen random convolutions by their normalization parameters alone."""

from bnrecon.features import register_features
from bnrecon.reconstruction import Reconstruction, reconstruct
from bnrecon.solvers import register_solver
from bnrecon.source_file import collapse, load_source
from bnrecon.targets.models import register_target

__all__ = [
    "Reconstruction", "collapse", "load_source", "reconstruct", "register_features", "register_solver", "register_target",
]  # fmt: skip
