"""`bnrecon report`: what was reproduced of the papers, as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnrecon.cli import exit_codes, output
from bnrecon.cli.parser import Parser
from bnrecon.cli.words import given_folder
from bnrecon.runtime.errors import UserError, nearest
from bnrecon.runtime.shipped import shipped_outputs
from bnrecon.runtime.units import format_bytes

if TYPE_CHECKING:
    from bnrecon.reproduction.request import StudyRequest
    from bnrecon.reproduction.study import Study

__all__ = ["add_commands"]

DESCRIPTION = """Write the verdicts, tables and figures of the papers as one HTML file. It works
offline, and is the same to the byte for the same results. Nothing is computed: what was not run
stands there with the command that runs it.

settings, written NAME=VALUE:
  scale=laptop        smoke, laptop or paper
  outputs=FOLDER      where runs, targets and tables are kept
  NAME=VALUE          an option that the runs were given, as in target.width=8"""

EXAMPLES = """examples:
  bnrecon report                                   all papers, to outputs/report.html
  bnrecon report burkholz2024 outputs=FOLDER       one paper, from another folder
  bnrecon report --output report.html              to another file"""


def add_commands(commands: Any, shared: Parser) -> None:
    """Add `report` to the parser's commands."""
    parser = commands.add_parser(
        "report",
        parents=[shared],
        help="write the papers' verdicts, tables and figures as one HTML file",
        usage="bnrecon report [STUDY ...] [NAME=VALUE ...] [--output FILE] [--overwrite]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="the file; report.html in outputs by default"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="overwrite FILE even if it is not a report"
    )
    parser.set_defaults(function=_report)


def _report(given: argparse.Namespace) -> int:
    """Write the report; print its path and what is in it."""
    asked = _read(given.words)
    folder = asked[0][1].outputs
    place = given.output or folder / "report.html"
    from bnrecon.reproduction.report import store

    store.check_place(place, given.overwrite)
    from bnrecon.reproduction.report import html

    html.require_libraries()
    return _write(asked, place, given.overwrite)


def _read(words: list[str]) -> list[tuple[Study, StudyRequest]]:
    """The studies that are named, all of them by default, and what is requested of each.

    Everything that can be checked without torch is checked here, so that slips are found at once.
    """
    from bnrecon.config import composition
    from bnrecon.reproduction import request
    from bnrecon.reproduction.study import SCALES
    from bnrecon.studies import registry

    names = [word for word in words if "=" not in word]
    options = [word for word in words if "=" in word]
    for name in names:
        if name not in registry.STUDIES:
            raise UserError(f"{name}: {nearest(name, registry.STUDIES)}; a report shows all parts")
    for option in options:
        own = option.lstrip("+").partition("=")[0]
        if own in request.OWN and own != "scale":
            raise UserError(f"{option}: for bnrecon study only; a report computes nothing")
    asked = [
        (registry.find(name), request.read(name, options))
        for name in registry.STUDIES
        if name in names or not names
    ]
    first = asked[0][1]
    if first.scale not in SCALES:
        raise UserError(f"scale={first.scale}: {nearest(first.scale, SCALES)}")
    composition.compose(first.options)
    if not shipped_outputs(first.outputs).is_dir():
        given_folder(str(first.outputs))
    return asked


def _write(asked: list[tuple[Study, StudyRequest]], place: Path, overwrite: bool) -> int:
    from bnrecon.reproduction.report import html, store
    from bnrecon.reproduction.report.contents import count_verdicts, gather
    from bnrecon.runtime.interruption import finish_loading

    finish_loading()
    report = gather(asked)
    content = html.render(report)
    store.write_report(place, content, overwrite)
    counts = count_verdicts(report.verdicts)
    found = ", ".join(f"{count} {name}" for name, count in counts.items())
    complete = sum(not part.incomplete for part in report.parts)
    output.write(
        f"{place}\nclaims: {found}; parts complete: {complete} of {len(report.parts)}; "
        f"runs: {report.runs.count}; {format_bytes(len(content))}"
    )
    return exit_codes.DONE
