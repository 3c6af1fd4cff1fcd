"""Durations and numbers of bytes as text."""

from __future__ import annotations


def format_duration(seconds: float) -> str:
    """A duration with about two digits.

    >>> [format_duration(seconds) for seconds in (0.4, 95, 4000, 90_000, 1e6)]
    ['0 s', '95 s', '67 min', '25 h', '12 days']
    """
    for unit, length, least in (("days", 86400, 3), ("h", 3600, 3), ("min", 60, 2)):
        if seconds >= least * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_bytes(size: float) -> str:
    """A number of bytes, in powers of 1000.

    >>> [format_bytes(size) for size in (46_796, 724_556, 10.87e9)]
    ['47 kB', '0.7 MB', '10.9 GB']
    """
    for unit, length in (("GB", 1e9), ("MB", 1e6)):
        if size >= length / 10:
            return f"{size / length:.1f} {unit}"
    return f"{size / 1e3:.0f} kB"
