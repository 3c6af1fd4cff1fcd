"""Frozen random features: distributions, drawing from a seed, the matrix M and its spectrum."""

from typing import TYPE_CHECKING

from bnrecon.features.shapes import LayerShape as LayerShape
from bnrecon.features.spec import ACTIVATIONS as ACTIVATIONS
from bnrecon.features.spec import SKIPS as SKIPS
from bnrecon.features.spec import FeatureSpec as FeatureSpec
from bnrecon.runtime.lazy import import_on_use

if TYPE_CHECKING:
    from bnrecon.features.drawing import draw as draw
    from bnrecon.features.pair import Features as Features
    from bnrecon.features.register import DISTRIBUTIONS as DISTRIBUTIONS
    from bnrecon.features.register import Distribution as Distribution
    from bnrecon.features.register import choose_width as choose_width
    from bnrecon.features.register import distribution as distribution
    from bnrecon.features.register import register_features as register_features

__getattr__, __dir__, __all__ = import_on_use(__name__)
