"""Windows of the plane."""

import torch

from bnrecon.partition import rectangle, slice_along

SQUARE = rectangle((-1, -1), (1, 1))


def plane(window=SQUARE):
    return slice_along(torch.zeros(2), torch.eye(2), window)
