"""`bnrecon cancel`: end the jobs that a study or a sweep has given to a cluster."""

from __future__ import annotations

import argparse

from bnrecon.cli import exit_codes, output
from bnrecon.cli.parser import Commands
from bnrecon.cli.words import is_sweep, outputs_folder, split_studies
from bnrecon.runtime.errors import UserError, require_choice

OPTIONS = ("scale", "outputs")


def add_commands(commands: Commands) -> None:
    """Add `cancel`."""
    commands.add("cancel", _cancel)


def _cancel(arguments: argparse.Namespace) -> int:
    """Cancel what is queued or running; print what it was, or that there was nothing."""
    names, options = split_studies(arguments.words, OPTIONS)
    if not names:
        raise UserError("cancel: give a study's name, as in: bnrecon cancel burkholz2024")
    outputs, scale = outputs_folder(options.get("outputs")), options.get("scale")
    from bnrecon.reproduction.study import SCALES

    if scale is not None:
        require_choice("scale=", scale, SCALES)
    from bnrecon.jobs.record import cancel

    sweeps = [name for name in names if is_sweep(outputs, name)]
    if scale is not None and sweeps:
        raise UserError(f"scale={scale}: {sweeps[0]} is a sweep, which has none; leave it out")
    for name in names:
        folder = outputs / ("sweeps" if name in sweeps else "studies") / name
        lines = cancel(folder, scale)
        for line in lines or [f"no job of {name} is known that waits or runs ({folder})"]:
            output.write(line)
    return exit_codes.DONE
