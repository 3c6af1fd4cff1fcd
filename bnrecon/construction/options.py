"""Checks of the numbers that the constructions are called with."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import torch

from bnrecon.runtime.errors import UserError
from bnrecon.runtime.hardware import available_memory
from bnrecon.runtime.units import format_bytes


def whole_number(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return an option as a Python integer; NumPy's integers are accepted, truth values are not.

    Raises ``UserError`` where it is no whole number from ``least`` to ``most``.

    >>> whole_number("width", 3, 1)
    3
    """
    allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool) or found < least or found > (most or found):
        raise UserError(f"{name}={value!r}: must be a whole number {allowed}")
    return found


def real_number(name: str, value: Any, most: float = math.inf) -> float:
    """Return an option as a float.

    Raises ``UserError`` where it is no finite number above 0 and at most ``most``.
    """
    allowed = "above 0 and finite" if most == math.inf else f"above 0 and at most {most:g}"
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (real and 0 < value <= most and math.isfinite(value)):
        raise UserError(f"{name}={value!r}: must be a number {allowed}")
    return float(value)


def require_memory(name: str, equations: int, scales: int, remedy: str) -> None:
    """Raise ``UserError`` where a layer's dense float64 system and its factors do not fit."""
    needed, free = 2 * 8 * equations * scales, available_memory(torch.device("cpu"))
    if needed > free:
        raise UserError(
            f"layer {name}: {equations} equations for {scales} scales need {format_bytes(needed)}, "
            f"{format_bytes(free)} are available; {remedy}"
        )
