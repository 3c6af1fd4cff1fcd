"""The ``sign`` features: independent ±1 entries, one random bit each, made when they are needed."""

from __future__ import annotations

import hashlib
import math

import numpy as np

from bnrecon.features.portable_random import Stream
from bnrecon.features.shapes import LayerShape
from bnrecon.operators.signs import SignMatrix

__all__ = ["sign_digest", "sign_factors"]

HASHED_BYTES = 2**25  # of bits that are in memory at once: 32 blocks, each drawn by a thread


def sign_factors(shape: LayerShape, width: int, stream: Stream) -> tuple[SignMatrix, SignMatrix]:
    """A (c1, c0) and B^T (c1, c2 taps) with entries ±sqrt(2 / fan-in), rounded to float32.

    >>> first, second = sign_factors(LayerShape(3, 2, (3, 3)), 54, Stream(0, 0))
    >>> first.size, (second.rows, second.columns)
    (1.0, (54, 27))
    """

    def factor(columns: int, fan_in: int, word: str) -> SignMatrix:
        size = float(np.float32(math.sqrt(2 / fan_in)))
        return SignMatrix(width, columns, size, lambda start, stop: stream.raw(start, stop, word))

    first = factor(shape.inputs, shape.inputs, "first")
    return first, factor(shape.outputs * shape.taps, width * shape.taps, "second")


def sign_digest(shape: LayerShape, width: int, stream: Stream, beside: str = "") -> str:
    """SHA-256 of the sizes, of ``beside``, and of both factors' bits, read a few at a time."""
    sides = (width, shape.outputs, shape.inputs, *shape.kernel)
    digest = hashlib.sha256(f"sign {sides} {beside};".encode())
    for factor in sign_factors(shape, width, stream):
        for start in range(0, factor.bytes, HASHED_BYTES):
            stop = min(start + HASHED_BYTES, factor.bytes)
            digest.update(factor.draw(start, stop).data)
    return digest.hexdigest()
