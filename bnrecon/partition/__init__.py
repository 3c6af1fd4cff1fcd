"""The exact partition of a slice of the input space by a piecewise-affine network.

``partition(network, slice_)`` gives the regions with their affine maps, and folded hyperplanes.
"""

from typing import TYPE_CHECKING

from bnrecon.runtime.lazy import import_on_use

if TYPE_CHECKING:
    from bnrecon.partition.counting import count_by_local_map as count_by_local_map
    from bnrecon.partition.counting import count_by_sampling as count_by_sampling
    from bnrecon.partition.counting import count_in_slice as count_in_slice
    from bnrecon.partition.counting import detection_probability as detection_probability
    from bnrecon.partition.counting import fold_distances as fold_distances
    from bnrecon.partition.counting import sample_ball as sample_ball
    from bnrecon.partition.forecasting import forecast as forecast
    from bnrecon.partition.network import Layer as Layer
    from bnrecon.partition.result import Folds as Folds
    from bnrecon.partition.result import Partition as Partition
    from bnrecon.partition.result import Region as Region
    from bnrecon.partition.result import Regions as Regions
    from bnrecon.partition.slice import Slice as Slice
    from bnrecon.partition.slice import rectangle as rectangle
    from bnrecon.partition.slice import slice_along as slice_along
    from bnrecon.partition.slice import slice_of as slice_of
    from bnrecon.partition.statistics import adapt_layers as adapt_layers
    from bnrecon.partition.statistics import random_network as random_network
    from bnrecon.partition.statistics import set_statistics as set_statistics
    from bnrecon.partition.subdivision import partition as partition

__getattr__, __dir__, __all__ = import_on_use(__name__)
