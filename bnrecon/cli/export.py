"""`bnrecon export`: send what was run before to TensorBoard, trackio or wandb."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnrecon.cli import exit_codes, output
from bnrecon.cli.parser import Parser
from bnrecon.cli.words import split
from bnrecon.runtime.errors import UserError, nearest

if TYPE_CHECKING:
    from bnrecon.config.schema import RunConfig

__all__ = ["OPTIONS", "add_commands"]

OPTIONS = ("outputs", "tracker_folder", "tracker_project")

SETTINGS = """settings, written NAME=VALUE:
  outputs=outputs           where runs and targets are kept; all of them are sent unless some are
                            named
  tracker_folder=null       where the tracker writes; null: the folder "trackers" in the outputs
  tracker_project=bnrecon   project of trackio and wandb

What was sent before, also by a run with tracker=NAME, is not sent again.
wandb writes to files alone (wandb sync uploads them), unless WANDB_MODE says otherwise."""


def add_commands(commands: Any, shared: Parser) -> None:
    """Add `export` to the parser's commands."""
    parser = commands.add_parser(
        "export",
        parents=[shared],
        usage="bnrecon export TRACKER [FOLDER|RUN|TARGET ...] [NAME=VALUE ...] [-q] [-v] [-h]",
        help="send finished runs and trainings to TensorBoard, trackio or wandb",
        description="Send finished runs and trainings to tensorboard, trackio or wandb.",
        epilog=SETTINGS,
    )
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.set_defaults(function=_export, parser=parser)


def _export(given: argparse.Namespace) -> int:
    """Send what is named; damaged files are named and left out, and make the exit code 1."""
    if not given.words:
        given.parser.print_help()
        return exit_codes.MISTAKE
    config, words = _read(given.words)
    from bnrecon.reporting.trackers import export, registry
    from bnrecon.runtime.interruption import finish_loading
    from bnrecon.runtime.tracking import Trackers

    finish_loading()

    opened: dict[Path, Trackers] = {}

    def trackers(item: export.Finished) -> Trackers:
        folder = config.tracking_folder
        if config.tracker_folder is None and item.outputs is not None:
            folder = item.outputs / "trackers"
        if folder not in opened:
            opened[folder] = registry.make_trackers(
                config.tracker, folder, config.tracker_project, at_once=False
            )
        return opened[folder]

    found = export.find_finished(words, Path(config.outputs))
    sent = export.export(found, trackers)
    views = [view for used in opened.values() for view in used.views]
    output.write("\n".join([sent.text(), *views]))
    return exit_codes.FAILED if sent.problems else exit_codes.DONE


def _read(given: list[str]) -> tuple[RunConfig, list[str]]:
    """The configuration of the trackers, and the words that name runs."""
    from bnrecon.config import composition
    from bnrecon.runtime.tracker_libraries import NAMES, require_libraries

    tracker, *rest = given
    words, options = split(rest, OPTIONS)
    if "=" in tracker or not set(tracker.split(",")) <= set(NAMES):
        raise UserError(f"export {tracker}: {nearest(tracker, NAMES)}")
    chosen = [f"{name}={value}" for name, value in options.items()]
    config = composition.compose([f"tracker={tracker}", *chosen])
    require_libraries(config.tracker)
    return config, words
