"""Frozen random features: distributions, drawing from a seed, the matrix M and its spectrum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import ACTIVATIONS, SKIPS, FeatureSpec
from bnrecon.runtime.lazy import import_on_use

if TYPE_CHECKING:
    from bnrecon.features.drawing import draw
    from bnrecon.features.pair import Features
    from bnrecon.features.register import (
        DISTRIBUTIONS,
        Distribution,
        choose_width,
        distribution,
        register_features,
    )

__all__ = [
    "ACTIVATIONS",
    "DISTRIBUTIONS",
    "SKIPS",
    "Distribution",
    "FeatureSpec",
    "Features",
    "LayerShape",
    "choose_width",
    "distribution",
    "draw",
    "register_features",
]

__getattr__ = import_on_use(__name__)
