"""What becomes of a piece of work: it starts, and it ends in a result, a mistake or a failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Detached", "Kind", "Outcome", "Started"]


class Detached(Exception):
    """The work goes on elsewhere, and this process need not wait; the message says where."""


Kind = Literal["done", "mistake", "failed"]


@dataclass(frozen=True)
class Started:
    """Somebody is at work on it from now on."""

    key: str


@dataclass(frozen=True)
class Outcome:
    """How a piece of work ended.

    Args:
        key: the work's key.
        label: what progress calls it.
        kind: ``"done"``; ``"mistake"`` in the request; ``"failed"`` for any other reason.
        gist: the result in short, or the reason, in one line.
        seconds: how long it took.
        log: the file that holds the details.
    """

    key: str
    label: str
    kind: Kind
    gist: str
    seconds: float
    log: str
