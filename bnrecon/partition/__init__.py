"""The exact partition of a slice of the input space by a piecewise-affine network.

``partition(network, slice_)`` gives the regions with their affine maps, and folded hyperplanes.
"""

from bnrecon.partition.counting import (
    count_by_local_map,
    count_by_sampling,
    count_in_slice,
    detection_probability,
    fold_distances,
    sample_ball,
)
from bnrecon.partition.forecasting import forecast
from bnrecon.partition.network import Layer
from bnrecon.partition.result import Folds, Partition, Region, Regions
from bnrecon.partition.slice import Slice, rectangle, slice_along, slice_of
from bnrecon.partition.statistics import adapt_layers, random_network, set_statistics
from bnrecon.partition.subdivision import partition

__all__ = [
    "Folds",
    "Layer",
    "Partition",
    "Region",
    "Regions",
    "Slice",
    "adapt_layers",
    "count_by_local_map",
    "count_by_sampling",
    "count_in_slice",
    "detection_probability",
    "fold_distances",
    "forecast",
    "partition",
    "random_network",
    "rectangle",
    "sample_ball",
    "set_statistics",
    "slice_along",
    "slice_of",
]
