"""The trackers that a configuration asks for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from bnrecon.config.schema import RunConfig
from bnrecon.reporting.trackers.tensorboard import TensorBoard
from bnrecon.reporting.trackers.trackio import Trackio
from bnrecon.reporting.trackers.wandb import Wandb
from bnrecon.runtime.tracker_libraries import require_libraries
from bnrecon.runtime.tracking import NO_TRACKERS, Tracker, Trackers

__all__ = ["TRACKERS", "make_trackers", "open_trackers"]

TRACKERS: dict[str, Callable[[Path, str], Tracker]] = {
    "tensorboard": TensorBoard,
    "trackio": Trackio,
    "wandb": Wandb,
}


def open_trackers(config: RunConfig) -> Trackers:
    """The trackers of ``tracker=``; one that has failed stays left out in this process.

    Raises:
        UserError: a library is missing.
    """
    if not config.tracker:
        return NO_TRACKERS
    return _opened(tuple(config.tracker), config.tracking_folder, config.tracker_project)


@functools.lru_cache
def _opened(names: tuple[str, ...], folder: Path, project: str) -> Trackers:
    return make_trackers(names, folder, project)


def make_trackers(
    names: Sequence[str], folder: Path, project: str, at_once: bool = True
) -> Trackers:
    """Trackers by name; see ``Trackers`` for ``at_once``.

    Raises:
        UserError: a library is missing.
    """
    require_libraries(names)
    return Trackers([TRACKERS[name](folder, project) for name in names], at_once)
