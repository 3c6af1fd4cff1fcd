"""`bnrecon study`, `tables` and `figures`: reproduce a paper, and show its results."""

from __future__ import annotations

import argparse
import logging
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bnrecon.cli import exit_codes, output
from bnrecon.cli.parser import Commands, add_detach, text
from bnrecon.cli.words import outputs_folder
from bnrecon.runtime.errors import UserError, nearest, require_choice
from bnrecon.runtime.interruption import finish_loading

if TYPE_CHECKING:
    from bnrecon.reproduction.request import StudyRequest
    from bnrecon.reproduction.study import Study

logger = logging.getLogger(__name__)


def add_commands(commands: Commands) -> None:
    """Add `study`, `tables` and `figures`."""
    study = commands.add("study", _study)
    for parser in (study, commands.add("tables", _tables), commands.add("figures", _figures)):
        parser.explain = lambda _: f"{text('settings.txt')}\n\n{_list_studies()}"
    add_detach(study, "with")
    study.add_argument(
        "--config-dir", type=Path, metavar="DIR", help="with cluster=slurm, read DIR/slurm.yaml"
    )


def _show_help(arguments: argparse.Namespace) -> int:
    """Print a study command's help, if no study is named."""
    output.write(arguments.parser.help_for(arguments))
    return exit_codes.MISTAKE


def _list_studies() -> str:
    from bnrecon.studies import registry

    lines = ["studies and their parts:"]
    for study in map(registry.find, registry.STUDIES):
        lines.append(f"  {study.name}: {study.paper}")
        lines += textwrap.wrap(
            " ".join(study.parts), 96, initial_indent=" " * 4, subsequent_indent=" " * 4
        )
        if study.solvers:
            lines.append(f"    rows of one solver only: {' or '.join(study.solvers)}")
    return "\n".join(lines)


def _study(arguments: argparse.Namespace) -> int:
    """Compute what is missing, then print the tables of finished results, even after failures."""
    if not arguments.words:
        return _show_help(arguments)
    study, request = _read(arguments.words, arguments.detach, arguments.config_dir)
    from bnrecon.reproduction import commands

    finish_loading()
    outcome = commands.run_study(study, request)
    output.write(f"{outcome.text}\n\n{request.folder}")
    return exit_codes.DONE if outcome.error is None else exit_codes.report(outcome.error)


def _tables(arguments: argparse.Namespace) -> int:
    """Print a study's tables, or the table of all runs in a folder."""
    if not _names_study(arguments.words):
        if len(arguments.words) > 1:
            advice = "give one folder, or a study's name; bnrecon tables --help says more"
            raise UserError(f"tables {' '.join(arguments.words)}: {advice}")
        from bnrecon.reporting.overview import overview
        from bnrecon.studies.registry import STUDIES

        name = arguments.words[0].removeprefix("outputs=") if arguments.words else "outputs"
        output.write(overview(outputs_folder(name, tuple(STUDIES), "print a paper's tables")))
        return exit_codes.DONE
    study, request = _read_computed(arguments.words)
    from bnrecon.reproduction import pages

    finish_loading()
    written = pages.write(study, request, redraw=False)
    output.write(f"{written.text}\n\n{request.folder}")
    written.warn_if_refused()
    return exit_codes.FAILED if written.unshown else exit_codes.DONE


def _figures(arguments: argparse.Namespace) -> int:
    """Draw a study's figures from finished results, and print their paths."""
    if not arguments.words:
        return _show_help(arguments)
    if not _names_study(arguments.words):
        from bnrecon.studies.registry import STUDIES

        advice = f"give a study's name: {nearest(arguments.words[0], STUDIES)}"
        raise UserError(f"figures {' '.join(arguments.words)}: {advice}")
    study, request = _read_computed(arguments.words)
    from bnrecon.reproduction import pages

    finish_loading()
    written = pages.write(study, request)
    if written.refused is not None:
        raise written.refused
    if written.figures:
        output.write("\n".join(map(str, written.figures)))
    elif not written.unshown:
        command = f"bnrecon study {' '.join(request.words_without_executor)}"
        output.write(f"no figure can be drawn yet; compute what is missing with: {command}")
    return exit_codes.FAILED if written.unshown else exit_codes.DONE


def _names_study(words: Sequence[str]) -> bool:
    from bnrecon.studies.registry import STUDIES

    return any(word in STUDIES for word in words[:1]) or any(map(_is_study, words))


def _is_study(word: str) -> bool:
    return word.startswith("study=")


def _read_computed(words: list[str]) -> tuple[Study, StudyRequest]:
    study, request = _read(words)
    if options := request.executor.words:
        raise UserError(f"{options[0]}: for bnrecon study only; tables and figures compute nothing")
    from bnrecon.runtime.shipped import shipped_folder, shipped_outputs

    outputs = shipped_outputs(request.outputs)
    if not any(path.is_dir() for path in (request.folder, outputs / study.name)):
        unknown = "%s has no results of this study; outputs=%s has the shipped ones"
        logger.warning(unknown, request.outputs, shipped_folder())
    return study, request


def _read(
    words: list[str], detach: bool = False, config_dir: Path | None = None
) -> tuple[Study, StudyRequest]:
    """The study, given first or as ``study=NAME``, and its request; checked without torch."""
    from bnrecon.config import composition
    from bnrecon.reproduction import request
    from bnrecon.studies import registry

    named = next(filter(_is_study, words), words[0])
    rest = [word for word in words if word is not named]
    study = registry.find(named.removeprefix("study="))
    requested = request.read(study.name, rest, detach, config_dir)
    names = (*study.parts, *study.solvers)
    for part in requested.parts:
        require_choice("", part, names)
    if imports := composition.compose(requested.options).imports:
        word = f"imports=[{','.join(imports)}]"
        raise UserError(f"{word}: a study uses only its paper's parts; bnrecon run takes yours")
    return study, requested
