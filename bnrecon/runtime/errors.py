"""The ways a command can end early, each with its exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

__all__ = ["Interrupted", "RunError", "UserError", "listed", "nearest"]


class UserError(ValueError):
    """A mistake in what was asked: one line saying what was given, what is allowed and what to do (exit code 2)."""


class RunError(RuntimeError):
    """What was asked is valid but failed on the way: diverged training, a singular system, no memory (exit code 1).

    ``reconstruction`` is what was rebuilt all the same, if anything was.
    """

    reconstruction: object | None = None


class Interrupted(RuntimeError):
    """Stopped from outside, or by its time limit, with everything done so far saved (exit code 130)."""


def nearest(given: object, allowed: Iterable[str]) -> str:
    """Name the allowed words, the one nearest to ``given`` first.

    >>> nearest("vg18", ["vgg18", "mlp"])
    "did you mean 'vgg18'? Allowed: mlp, vgg18"
    >>> nearest(18, ["vgg18", "mlp"])
    "did you mean 'vgg18'? Allowed: mlp, vgg18"
    """
    allowed = sorted(allowed)
    lower = {word.lower(): word for word in allowed}
    close = difflib.get_close_matches(str(given).lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean '{lower[close[0]]}'? " if close else ""
    return f"{hint}Allowed: {', '.join(allowed)}"


def listed(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and how many more there are.

    >>> listed(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
