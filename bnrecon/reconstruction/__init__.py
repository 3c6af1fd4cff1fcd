"""The library call: plan, solve, assemble; a source network from any target, saved and loaded by its seed."""

from bnrecon.reconstruction.assembly import reconstruct
from bnrecon.reconstruction.planning import Plan, PlannedLayer, RefusedLayers, plan_layers
from bnrecon.reconstruction.report import LayerReport, OutputDifference, Reconstruction

__all__ = [
    "LayerReport",
    "OutputDifference",
    "Plan",
    "PlannedLayer",
    "Reconstruction",
    "RefusedLayers",
    "plan_layers",
    "reconstruct",
]
