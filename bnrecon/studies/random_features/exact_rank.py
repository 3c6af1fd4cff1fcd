"""Ranks in exact arithmetic: modulo a prime, where rounding cannot hide a singular matrix."""

from __future__ import annotations

import numpy as np
import torch

PRIME = 2**31 - 1
MANTISSA = 24  # bits of a float32 number


def residues(values: torch.Tensor) -> np.ndarray:
    """Float32 numbers modulo ``PRIME``; m 2^e is taken as an exact rational number.

    2 has order 31 modulo ``PRIME``, so negative exponents need no division.

    >>> residues(torch.tensor([3.0, -1.0, 0.5])).tolist()
    [3, 2147483646, 1073741824]
    """
    mantissa, exponent = np.frexp(values.double().numpy())
    whole = np.rint(mantissa * 2.0**MANTISSA).astype(np.int64)
    powers = np.left_shift(np.int64(1), (exponent.astype(np.int64) - MANTISSA) % 31)
    return whole * powers % PRIME


def modular_rank(matrix: np.ndarray) -> int:
    """The rank of an integer matrix modulo ``PRIME``, by Gaussian elimination.

    It is at most the rank over the rationals, so it proves full rank. It is less only if the prime
    divides all minors of that size, which is impossible for a small matrix of small numbers.

    >>> modular_rank(np.array([[1, 2], [2, 4]])), modular_rank(np.array([[1, 2], [2, 5]]))
    (1, 2)
    """
    rest, rank = matrix % PRIME, 0
    for column in range(rest.shape[1]):
        pivots = rest[rank:, column].nonzero()[0]
        if not len(pivots):
            continue
        pivot = rank + pivots[0]
        rest[[rank, pivot]] = rest[[pivot, rank]]
        inverse = pow(int(rest[rank, column]), -1, PRIME)
        row = rest[rank, column:] * inverse % PRIME
        factors = rest[rank + 1 :, column]
        rest[rank + 1 :, column:] = (rest[rank + 1 :, column:] - np.outer(factors, row)) % PRIME
        rank += 1
        if rank == rest.shape[0]:
            break
    return rank
