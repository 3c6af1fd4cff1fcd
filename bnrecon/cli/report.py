"""`bnrecon report`: the reproduced results of the papers, as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from bnrecon.cli import exit_codes, output
from bnrecon.cli.parser import Commands
from bnrecon.cli.words import outputs_folder
from bnrecon.runtime.errors import UserError, nearest
from bnrecon.runtime.shipped import shipped_outputs
from bnrecon.runtime.units import format_bytes

if TYPE_CHECKING:
    from bnrecon.reproduction.request import StudyRequest
    from bnrecon.reproduction.study import Study

MARK = b'<meta name="generator" content="bnrecon report">'
BEGINNING = 4096  # a report has the mark within so many bytes


def add_commands(commands: Commands) -> None:
    """Add `report`."""
    parser = commands.add("report", _report)
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="output file; by default report.html in outputs"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="overwrite FILE even if it is not a report"
    )


def _report(arguments: argparse.Namespace) -> int:
    """Write the report; print its path and a summary."""
    requests = _read(arguments.words)
    path = arguments.output or requests[0][1].outputs / "report.html"
    check_output(path, arguments.overwrite)
    from bnrecon.reproduction.report import html

    html.require_libraries()
    from bnrecon.reproduction.report.contents import count_verdicts, gather
    from bnrecon.runtime import files
    from bnrecon.runtime.interruption import finish_loading

    finish_loading()
    report = gather(requests)
    content = html.render(report)
    files.write_bytes(path, content)
    counts = count_verdicts(report.verdicts)
    claims = ", ".join(f"{count} {name}" for name, count in counts.items())
    complete = sum(not part.incomplete for part in report.parts)
    output.write(
        f"{path}\nclaims: {claims}; parts complete: {complete} of {len(report.parts)}; "
        f"runs: {report.runs.count}; {format_bytes(len(content))}"
    )
    return exit_codes.DONE


def check_output(path: Path, overwrite: bool) -> None:
    """Refuse a path where no report can be written; ``overwrite`` allows replacing any file.

    Raises:
        UserError: it is a folder, a file that is not a report, or a path below a file.
        FileExistsError: it is a device, a pipe, a socket or a broken link.
    """
    if path.is_dir():
        raise UserError(f"--output {path}: is a folder; give a file, as in {path / 'report.html'}")
    above = next((folder for folder in path.parents if folder.exists()), None)
    if above is not None and not above.is_dir():
        raise UserError(f"--output {path}: {above} is a file, not a folder")
    from bnrecon.runtime import files

    files.resolve_target(path)
    if path.exists() and not overwrite:
        with open(path, "rb") as file:
            if MARK not in file.read(BEGINNING):
                raise UserError(
                    f"--output {path}: this file exists and is not a bnrecon report; give another "
                    "name, or --overwrite"
                )


def _read(words: list[str]) -> list[tuple[Study, StudyRequest]]:
    """The named studies, or all, and the request for each; checked without torch."""
    from bnrecon.config import composition
    from bnrecon.reproduction import request
    from bnrecon.studies import registry

    names = [word for word in words if "=" not in word]
    options = [word for word in words if "=" in word]
    for name in names:
        if name not in registry.STUDIES:
            raise UserError(f"{name}: {nearest(name, registry.STUDIES)}; a report shows all parts")
    for option in options:
        setting = option.lstrip("+").partition("=")[0]
        if setting in request.STUDY_OPTIONS and setting != "scale":
            raise UserError(f"{option}: for bnrecon study only; a report computes nothing")
    requests = [
        (registry.find(name), request.read(name, options))
        for name in registry.STUDIES
        if name in names or not names
    ]
    first = requests[0][1]
    composition.compose(first.options)
    if not shipped_outputs(first.outputs).is_dir():
        outputs_folder(str(first.outputs))
    return requests
