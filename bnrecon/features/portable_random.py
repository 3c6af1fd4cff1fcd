"""Random numbers that come out bit for bit the same on any machine, any part of them in any order.

torch's CPU normals differ between vector instruction sets, and mathematical libraries differ in the
last bit of a logarithm. Here integers come from NumPy's counter-based Philox (its raw stream is
guaranteed stable), and floats from them by additions, multiplications, divisions and square roots
alone, which IEEE 754 defines to the last bit.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

__all__ = ["Stream"]


# Numbers a block: each block has a key of its own, so that blocks can be drawn in parallel
BLOCK = 1 << 18
STEP = 32  # bytes by which Philox's counter goes on


@dataclass(frozen=True)
class Stream:
    """Independent sequences of numbers, one for each seed, layer number and word.

    >>> Stream(seed=0, layer=3).normal((2, 2), "first")
    tensor([[ 0.0630, -1.2832],
            [ 0.4469,  2.3535]])
    """

    seed: int
    layer: int

    def bits(self, count: int, word: str) -> np.ndarray:
        """Draw ``count`` uniform 32-bit integers."""
        out = np.empty(count, dtype=np.uint32)
        self._fill(out, word, lambda bits, part: np.copyto(part, bits))
        return out

    def raw(self, start: int, stop: int, word: str) -> np.ndarray:
        """Bytes ``start`` to ``stop`` of the integers that ``bits`` draws, without those before.

        >>> stream = Stream(seed=0, layer=3)
        >>> bool((stream.raw(5, 9, "w") == stream.bits(3, "w").astype("<u4").view("u1")[5:9]).all())
        True
        """
        size = 4 * BLOCK
        parts = []
        for number in range(start // size, -(-stop // size)):
            first, last = max(start - number * size, 0), min(stop - number * size, size)
            begin = first // STEP * STEP
            generator = np.random.Philox(key=self._key(word, number), counter=begin // STEP)
            drawn = generator.random_raw(-(-(last - begin) // 8)).astype("<u8", copy=False)
            parts.append(drawn.view("u1")[first - begin : last - begin])
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, "u1"), *parts])

    def _key(self, word: str, number: int) -> np.ndarray:
        """Philox's key of a block."""
        entropy = [self.seed, self.layer, zlib.crc32(word.encode()), number]
        return np.random.SeedSequence(entropy).generate_state(2, np.uint64)

    def normal(self, shape: tuple[int, ...], word: str, deviation: float = 1.0) -> torch.Tensor:
        """Draw normal float32 numbers of mean 0, by inverting the distribution function."""
        out = np.empty(math.prod(shape), dtype=np.float32)
        self._fill(
            out,
            word,
            lambda bits, part: np.multiply(
                normal_quantile(_open_unit(bits)), deviation, out=part, casting="same_kind"
            ),
        )
        return torch.from_numpy(out).reshape(shape)

    def uniform(self, shape: tuple[int, ...], word: str, bound: float = 1.0) -> torch.Tensor:
        """Draw float32 numbers uniform on [-bound, bound]."""
        out = np.empty(math.prod(shape), dtype=np.float32)
        self._fill(
            out,
            word,
            lambda bits, part: np.multiply(
                2 * _open_unit(bits) - 1, bound, out=part, casting="same_kind"
            ),
        )
        return torch.from_numpy(out).reshape(shape)

    def mask(self, shape: tuple[int, ...], word: str, share: float = 0.5) -> torch.Tensor:
        """Draw coins that are true with probability ``share``."""
        return torch.from_numpy(
            self.bits(math.prod(shape), word) >= round((1 - share) * 2**32)
        ).reshape(shape)

    def order(self, count: int, word: str) -> torch.Tensor:
        """Draw a permutation of 0 … count - 1."""
        return torch.from_numpy(np.argsort(self.bits(count, word), kind="stable"))

    def _fill(
        self, out: np.ndarray, word: str, write: Callable[[np.ndarray, np.ndarray], object]
    ) -> None:
        def block(number: int) -> None:
            part = out[number * BLOCK : (number + 1) * BLOCK]
            generator = np.random.Philox(key=self._key(word, number))
            raw = generator.random_raw((len(part) + 1) // 2).astype("<u8").view("<u4")[: len(part)]
            for first in range(0, len(part), 1 << 14):  # small enough for the fast cache
                inner = slice(first, first + (1 << 14))
                write(raw[inner], part[inner])

        blocks = range(-(-len(out) // BLOCK))
        if len(blocks) <= 1:
            for number in blocks:
                block(number)
            return
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(block, blocks))


def _open_unit(bits: np.ndarray) -> np.ndarray:
    """Map 32-bit integers to (0, 1), symmetric about one half; exact in float64."""
    return (bits.astype(np.float64) + 0.5) * 2.0**-32


# Wichura 1988, "Algorithm AS 241: the percentage points of the normal distribution", routine PPND7:
# rational approximations with an accuracy of about 1 part in 10^7, lowest power first.
_CENTRE = (
    (3.3871327179, 50.434271938, 159.29113202, 59.109374720),
    (1.0, 17.895169469, 78.757757664, 67.187563600),
)


_NEAR = (
    (1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103),
    (1.0, 0.73700164250, 0.12021132975),
)


_FAR = (
    (6.6579051150, 3.0812263860, 0.42868294337, 0.017337203997),
    (1.0, 0.24197894225, 0.012258202635),
)


def normal_quantile(p: np.ndarray) -> np.ndarray:
    """Quantiles of the standard normal distribution for float64 ``p`` in (0, 1).

    >>> round(float(normal_quantile(np.array([0.975]))[0]), 5)
    1.95996
    """
    q = p - 0.5
    out = q * _rational(0.180625 - q * q, _CENTRE)
    tail = np.flatnonzero(np.abs(q) > 0.425)
    distance = np.minimum(p[tail], 1 - p[tail])
    root = np.sqrt(-_log(distance))
    magnitude = np.where(root <= 5, _rational(root - 1.6, _NEAR), _rational(root - 5.0, _FAR))
    out[tail] = np.where(q[tail] < 0, -magnitude, magnitude)
    return out


def _rational(
    r: np.ndarray, coefficients: tuple[tuple[float, ...], tuple[float, ...]]
) -> np.ndarray:
    return _polynomial(r, coefficients[0]) / _polynomial(r, coefficients[1])


def _polynomial(r: np.ndarray, coefficients: tuple[float, ...]) -> np.ndarray:
    total = np.full_like(r, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        total *= r
        total += coefficient
    return total


_LOG_2, _ROOT_HALF = 0.6931471805599453, 0.7071067811865476


def _log(x: np.ndarray) -> np.ndarray:
    """Natural logarithm to about 1e-11: log m = 2 artanh((m - 1)/(m + 1)), m in [√½, √2)."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < _ROOT_HALF
    mantissa = np.where(low, 2 * mantissa, mantissa)
    s = (mantissa - 1) / (mantissa + 1)
    series = _polynomial(s * s, tuple(1.0 / k for k in range(1, 15, 2)))
    return 2 * s * series + (exponent - low) * _LOG_2
