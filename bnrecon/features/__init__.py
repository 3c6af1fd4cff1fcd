"""Frozen random features: shapes, distributions and their register, drawing from a seed, the matrix M and its spectrum."""

from bnrecon.features import distributions
from bnrecon.features.drawing import check_skip, draw
from bnrecon.features.pair import SKIPS, Features
from bnrecon.features.register import (
    DISTRIBUTIONS,
    Distribution,
    choose_width,
    distribution,
    register_features,
)
from bnrecon.features.shapes import LayerShape

__all__ = [
    "DISTRIBUTIONS",
    "SKIPS",
    "Distribution",
    "Features",
    "LayerShape",
    "check_skip",
    "choose_width",
    "distribution",
    "distributions",
    "draw",
    "register_features",
]
