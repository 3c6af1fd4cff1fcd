"""The embedded digits as vectors: real inputs for small networks."""

from __future__ import annotations

import functools

import numpy as np
import torch

from bnrecon.data import DataSpec, load


@functools.cache
def digit_vectors() -> np.ndarray:
    """The training images (N, 64), normalized, float64.

    >>> digit_vectors().shape
    (1437, 64)
    """
    data = load(DataSpec("digits", crop_padding=1, flip=False))
    device = torch.device("cpu")
    batches = data.plain_train_batches(data.sizes[0], device, data.sizes[0])
    return next(iter(batches)).flatten(1).double().numpy()
