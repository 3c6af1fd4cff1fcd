"""What trackers are sent of a training: its epochs, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bnrecon.runtime.tracking import TrackedRun


def log_epoch(tracked: TrackedRun, row: Mapping[str, float]) -> None:
    """Log a row of the trainer's log."""
    values = {name: value for name, value in row.items() if name != "epoch"}
    tracked.log("epoch", int(row["epoch"]), values)


def log_training(tracked: TrackedRun, about: Mapping[str, Any]) -> None:
    """Log all of a finished training, as ``target.json`` has it."""
    for row in about["log"]:
        log_epoch(tracked, row)
    values = {name: about[name] for name in ("accuracy", "images", "seconds")}
    tracked.log("result", 0, values)
