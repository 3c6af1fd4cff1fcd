"""`bnrecon export`: send finished runs and trainings to TensorBoard, trackio, wandb or MLflow."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bnrecon.cli import exit_codes, output
from bnrecon.cli.parser import Commands
from bnrecon.cli.words import split
from bnrecon.runtime.errors import UserError, nearest

if TYPE_CHECKING:
    from bnrecon.config.schema import RunConfig

OPTIONS = ("outputs", "tracker_folder", "tracker_project")


def add_commands(commands: Commands) -> None:
    """Add `export`."""
    commands.add("export", _export)


def _export(arguments: argparse.Namespace) -> int:
    """Send what is named; damaged files are reported and skipped, and make the exit code 1."""
    if not arguments.words:
        output.write(arguments.parser.help_for(arguments))
        return exit_codes.MISTAKE
    config, names = _read(arguments.words)
    from bnrecon.reporting.trackers.export import export, find_finished
    from bnrecon.runtime.interruption import finish_loading

    finish_loading()
    lines, problems = export(find_finished(names, Path(config.outputs)), config)
    output.write("\n".join(lines))
    return exit_codes.FAILED if problems else exit_codes.DONE


def _read(words: list[str]) -> tuple[RunConfig, list[str]]:
    """The configuration of the trackers, and the words that name runs."""
    from bnrecon.config import composition
    from bnrecon.runtime.extras import TRACKERS, require_trackers

    tracker, *rest = words
    names, options = split(rest, OPTIONS)
    if "=" in tracker or not set(tracker.split(",")) <= set(TRACKERS):
        raise UserError(f"export {tracker}: {nearest(tracker, TRACKERS)}")
    chosen = [f"{name}={value}" for name, value in options.items()]
    config = composition.compose([f"tracker={tracker}", *chosen])
    require_trackers(config.tracker)
    return config, names
