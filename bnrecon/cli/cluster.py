"""`bnrecon cancel`: end the jobs that a study has given to a cluster."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bnrecon.cli import exit_codes, output
from bnrecon.cli.parser import Parser
from bnrecon.runtime.errors import UserError, nearest

__all__ = ["OPTIONS", "add_commands"]

OPTIONS = ("scale", "outputs")


def add_commands(commands: Any, shared: Parser) -> None:
    """Add `cancel` to the parser's commands."""
    parser = commands.add_parser(
        "cancel",
        parents=[shared],
        help="end the jobs that a study has given to a cluster (cluster=)",
        usage="bnrecon cancel STUDY ... [scale=SCALE] [outputs=FOLDER] [-q] [-v] [-h]",
        description="End the jobs that a study has given to a cluster. What they have finished "
        "stays; bnrecon study computes the rest.",
    )
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.set_defaults(function=_cancel, parser=parser)


def _cancel(given: argparse.Namespace) -> int:
    """Cancel what is queued or running; print what it was, or that there was nothing."""
    names = [word for word in given.words if "=" not in word]
    if not names:
        raise UserError("cancel: give a study's name, as in: bnrecon cancel burkholz2024")
    options = _options([word for word in given.words if "=" in word])
    outputs = Path(options.get("outputs", "outputs"))
    if "outputs" in options and not outputs.is_dir():
        raise UserError(f"outputs={outputs}: no such folder; give the one that the study was given")
    for name in names:
        _check_study(name)
    scale = options.get("scale")
    from bnrecon.reproduction.study import SCALES

    if scale is not None and scale not in SCALES:
        raise UserError(f"scale={scale}: {nearest(scale, SCALES)}")
    from bnrecon.reproduction.executors.cancelling import cancel

    for name in names:
        folder = outputs / "studies" / name
        cancelled = cancel(folder, scale)
        for each in cancelled:
            output.write(each.text())
        if not cancelled:
            output.write(f"no job of {name} is known that waits or runs ({folder})")
    return exit_codes.DONE


def _options(words: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        key, _, value = word.partition("=")
        if key not in OPTIONS:
            raise UserError(f"{word}: {nearest(f'{key}=', [f'{name}=' for name in OPTIONS])}")
        if not value or key in found:
            raise UserError(f"{word}: give {key}= once, with a value")
        found[key] = value
    return found


def _check_study(name: str) -> None:
    from bnrecon.studies.registry import STUDIES

    if name not in STUDIES:
        raise UserError(f"study={name}: {nearest(name, STUDIES)}")
