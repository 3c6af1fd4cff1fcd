"""Estimate how many regions a partition will have, without computing it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from bnrecon.partition.network import PiecewiseAffine
from bnrecon.partition.slice import Slice
from bnrecon.runtime.torch_modes import outside_torch_modes

CHORDS = 4_000  # lines to compare in all pairs; of more lines, as many at random


@outside_torch_modes
def forecast(network: nn.Module, slice_: Slice) -> int:
    """Estimate how many regions ``partition`` will return, without cutting any.

    Every unit's zero line is that of its affine map at the window's centre; a pooling's is where
    its two largest values there are equal. L lines that cross a convex window, of which I pairs
    cross inside, cut it into 1 + L + I regions. This is exact for one layer of units whose lines
    meet in pairs; the estimate ignores that earlier units bend a deeper unit's line.

    Args:
        network: any piecewise-affine network, run in eval mode; it is not changed.
        slice_: the slice and its window.

    Raises:
        UserError: an operation is not supported or has values that are not finite.

    >>> from bnrecon.partition import rectangle, slice_along
    >>> network = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    >>> with torch.no_grad():
    ...     network[0].weight.copy_(torch.eye(2)), network[0].bias.zero_()
    (..., ...)
    >>> square = rectangle((-1, -1), (1, 1))
    >>> forecast(network, slice_along([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], square))
    4
    """
    ends = _ends_of_lines(_values_at_corners(network, slice_))
    count, compared = len(ends), ends
    if count > CHORDS:
        compared = np.random.default_rng(0).choice(ends, CHORDS, replace=False)
    first, second = compared.T
    # Two chords cross if their ends alternate around the window.
    between = (first[:, None] < first) & (first < second[:, None]) & (second[:, None] < second)
    pairs = int(between.sum())
    if len(compared) < count:
        pairs = round(pairs * (count / len(compared)) ** 2)
    return 1 + count + pairs


def fitting_share(network: nn.Module, slice_: Slice, most: int) -> float | None:
    """The power of 1/2 by which a window with more than ``most`` regions should fit, if any."""
    share, centre = 0.5, slice_.window.mean(0)
    while share > 1e-9:
        window = centre + share * (slice_.window - centre)
        if forecast(network, replace(slice_, window=window)) <= most:
            return share
        share /= 2
    return None


def _values_at_corners(network: nn.Module, slice_: Slice) -> np.ndarray:
    """Every unit's value (corners, units) at the window's corners, by its map at the centre."""
    steps = PiecewiseAffine(network, tuple(slice_.origin.shape))
    centre = slice_.window.mean(0, keepdims=True)
    state = steps.start(slice_.inputs(np.concatenate([centre, slice_.window])))
    values = [torch.zeros(len(slice_.window), 0, dtype=torch.float64)]
    with torch.no_grad():
        for _, node, source in steps.walk(state):
            units = source.flatten(1)
            if steps.kinds[node] != "activation":
                members = steps.members(node, source.shape)  # a padded one is repeated
                at_centre = units[0, members]
                first = members.gather(1, at_centre.argmax(1, keepdim=True))
                others = torch.where(members == first, -torch.inf, at_centre)
                second = members.gather(1, others.argmax(1, keepdim=True))
                units = (units[:, second] - units[:, first])[..., 0]
            values.append(units[1:])
            state[node] = steps.hold(node, source, source[:1].flatten(1))
    return torch.cat(values, 1).numpy()


def _ends_of_lines(values: np.ndarray) -> np.ndarray:
    """Where zero lines cross the window's boundary (lines, 2): edge number plus share of it."""
    following = np.roll(values, -1, 0)
    unit, edge = np.nonzero(((values > 0) != (following > 0)).T)
    a, b = values[edge, unit], following[edge, unit]
    return (edge + a / (a - b)).reshape(-1, 2)
