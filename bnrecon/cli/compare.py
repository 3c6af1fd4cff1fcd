"""`bnrecon compare`: how two runs differ."""

from __future__ import annotations

import argparse

from bnrecon.cli import exit_codes, output
from bnrecon.cli.parser import Commands
from bnrecon.cli.words import outputs_folder, split
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.shipped import DEFAULT_OUTPUTS, shipped_outputs

OPTIONS = ("outputs", "data.root")


def add_commands(commands: Commands) -> None:
    """Add `compare`."""
    commands.add("compare", _compare).add_argument(
        "--predict",
        action="store_true",
        help="compute which test images the two runs' saved sources predict differently",
    )


def _compare(arguments: argparse.Namespace) -> int:
    """Print how two runs differ."""
    names, options = split(arguments.words, OPTIONS)
    if len(names) != 2:
        listed = f"{', '.join(names)}: " if names else ""
        raise UserError(f"{listed}compare takes two runs, not {len(names)}; bnrecon ls runs")
    outputs, root = options.get("outputs"), options.get("data.root")
    # The default folder need not exist: the runs may be given as folders.
    folder = DEFAULT_OUTPUTS if outputs is None else outputs_folder(outputs)
    if root is not None and not arguments.predict:
        raise UserError(f"data.root={root}: only --predict uses the images")
    from bnrecon.reporting.inventory import find_run

    folders = list(dict.fromkeys([folder, shipped_outputs(folder)]))
    one, other = (find_run(name, folders) for name in names)
    if one.resolve() == other.resolve():
        raise UserError(f"{names[0]} and {names[1]} are the same run, {one}; give two")
    from bnrecon.reporting.comparison import compare
    from bnrecon.reporting.result import RunResult
    from bnrecon.runtime.interruption import finish_loading

    finish_loading()
    first, second = ((run, RunResult.read(run / "result.json")) for run in (one, other))
    if not arguments.predict:
        output.write(compare(first, second))
        return exit_codes.DONE
    from bnrecon.reporting.predictions import disagreements
    from bnrecon.runtime.user_code import import_user_modules

    for _, result in (first, second):
        import_user_modules(result.config.get("imports", []))
    output.write(compare(first, second, disagreements(first, second, root)))
    return exit_codes.DONE
