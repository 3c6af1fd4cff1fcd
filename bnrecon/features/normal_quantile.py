"""Normal numbers from 32-bit integers, by inverting the distribution function.

Only additions, multiplications, divisions and square roots are used, which IEEE 754 defines to the
last bit: the numbers are the same on any machine. Powers of two are factored out of the formulas
where that saves a pass over the numbers, without changing a bit.
"""

from __future__ import annotations

import numpy as np

AT_ONCE = 1 << 15  # numbers: few NumPy calls, temporaries near the second-level cache

# Wichura 1988, "Algorithm AS 241: the percentage points of the normal distribution", routine PPND7:
# rational approximations with an accuracy of about 1 part in 10^7, lowest power first. For p = q +
# 1/2 they are q times a function of r = 0.180625 - q², and ± a function of sqrt(-ln(1/2 - |q|))
# where |q| > 0.425, which is r < 0.
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

# The centre's formulas for 2^32 q and 2^64 r
_WHOLE, _UNIT = 2.0**32, 2.0**-32
_ROOM = 0.180625 * 2.0**64
_ABOVE, _BELOW = (tuple(c * 2.0 ** (-64 * k) for k, c in enumerate(part)) for part in _CENTRE)


def normals(bits: np.ndarray, deviation: float, out: np.ndarray, at_once: int = AT_ONCE) -> None:
    """Turn uniform integers into normal numbers of mean 0.

    Args:
        bits: uint32; k becomes the quantile at (k + 1/2) / 2^32.
        deviation: standard deviation.
        out: float32, of the same length.
        at_once: how many numbers each NumPy call takes; it changes no bit.

    >>> normals(np.array([0, 2**31, 4187593113], "u4"), 1.0, out := np.empty(3, "f4"))
    >>> [round(float(number), 5) for number in out]
    [-6.33796, 0.0, 1.95996]
    """
    room = np.empty((4, min(at_once, len(out))))
    for first in range(0, len(out), at_once):
        part = slice(first, first + at_once)
        quantiles = _scaled_quantiles(bits[part], room[:, : len(out[part])])
        np.multiply(quantiles, deviation * _UNIT, out=out[part], casting="same_kind")


def _scaled_quantiles(bits: np.ndarray, room: np.ndarray) -> np.ndarray:
    """2^32 times the quantiles, in one of the rows of ``room``."""
    q, r, total, divisor = room
    np.subtract(bits, 2.0**31 - 0.5, out=q)
    np.multiply(q, q, out=r)
    np.subtract(_ROOM, r, out=r)
    _polynomial(r, _ABOVE, total)
    total /= _polynomial(r, _BELOW, divisor)
    total *= q
    tail = np.flatnonzero(r < 0)
    side = q[tail]
    total[tail] = np.copysign(_tail((2.0**31 - np.abs(side)) * _UNIT), side) * _WHOLE
    return total


def _tail(p: np.ndarray) -> np.ndarray:
    """Magnitudes of the quantiles at p < 0.075."""
    root = np.sqrt(-_log(p))
    magnitude = _rational(root - 1.6, _NEAR)
    far = np.flatnonzero(root > 5)
    magnitude[far] = _rational(root[far] - 5.0, _FAR)
    return magnitude


def _rational(
    r: np.ndarray, coefficients: tuple[tuple[float, ...], tuple[float, ...]]
) -> np.ndarray:
    total = _polynomial(r, coefficients[0], np.empty_like(r))
    total /= _polynomial(r, coefficients[1], np.empty_like(r))
    return total


def _polynomial(r: np.ndarray, coefficients: tuple[float, ...], out: np.ndarray) -> np.ndarray:
    np.multiply(r, coefficients[-1], out=out)
    for coefficient in coefficients[-2:0:-1]:
        out += coefficient
        out *= r
    out += coefficients[0]
    return out


_LOG_2 = 0.6931471805599453
_ROOT_HALF = np.float64(0.7071067811865476).view(np.int64)
_ARTANH = tuple(1.0 / k for k in range(1, 15, 2))


def _log(x: np.ndarray) -> np.ndarray:
    """Natural logarithm to about 1e-11: ln x = e ln 2 + 2 artanh((m - 1)/(m + 1)).

    x = m 2^e with m in [√½, √2); as an integer, x counts e in bits 52 and up.
    """
    exponent = x.view(np.int64) - _ROOT_HALF
    exponent >>= 52
    mantissa = (x.view(np.int64) - (exponent << 52)).view(np.float64)
    s = mantissa - 1
    mantissa += 1
    s /= mantissa
    series = _polynomial(s * s, _ARTANH, mantissa)
    s *= 2
    s *= series
    s += exponent * _LOG_2
    return s
