"""The ways a command can end early, each with its exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["Interrupted", "RunError", "UserError", "nearest"]


class UserError(ValueError):
    """A mistake in what was asked: one line saying what was given, what is allowed and what to do (exit code 2)."""


class RunError(RuntimeError):
    """What was asked is valid but failed on the way: diverged training, a singular system, no memory (exit code 1)."""


class Interrupted(RuntimeError):
    """Stopped from outside, or by its time limit, with everything done so far saved (exit code 130)."""


def nearest(given: str, allowed: Iterable[str]) -> str:
    """Name the allowed words, the one nearest to ``given`` first.

    >>> nearest("vg18", ["vgg18", "mlp"])
    "did you mean 'vgg18'? Allowed: mlp, vgg18"
    """
    allowed = sorted(allowed)
    lower = {word.lower(): word for word in allowed}
    close = difflib.get_close_matches(given.lower(), lower, n=1, cutoff=0.5)
    hint = f"did you mean '{lower[close[0]]}'? " if close else ""
    return f"{hint}Allowed: {', '.join(allowed)}"
