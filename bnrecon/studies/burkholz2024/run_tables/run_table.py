"""A table of the main job's runs: its rows, its page, and its claims."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from bnrecon.reporting import tables
from bnrecon.reporting.figures import Figure
from bnrecon.reporting.latex import latex
from bnrecon.reproduction import page
from bnrecon.reproduction.experiment import Claim
from bnrecon.reproduction.parts import Decisions, PartText, read_text, refuse_compared
from bnrecon.reproduction.request import option_group, option_name, result_options
from bnrecon.reproduction.study import PartRequest
from bnrecon.studies.burkholz2024.run_tables import grids, row_numbers, verdicts
from bnrecon.studies.burkholz2024.run_tables.row import Cell, Row, RowWork, results_of

READING = read_text(__file__)  # how tables of runs are to be read
LIMITS = {
    "equivalent": verdicts.EQUIVALENT,
    "reserve": verdicts.RESERVE,
    "significant": verdicts.SIGNIFICANT,
}

# Groups of options without which the paper's numbers are of another setting, and options of these
# that do not matter: a width is compared with the printed one.
SETTING, SAME_SETTING = {"data", "target", "train", "features"}, {"target.width", "train.seed"}


@dataclass(frozen=True)
class RunTable:
    """A table of runs, bound to ``PART`` in one file of a paper's folder."""

    # Position, title and claims; a caption in addition to the common explanation of columns
    text: PartText
    # From the scale and the user's options; ``UserError`` for an option in which rows differ
    rows: Callable[[str, Sequence[str]], Sequence[Row]]
    # Draws the finished rows; ``None`` for no figure
    draw: Callable[[Sequence[Cell]], Figure] | None = None
    # The claims' verdicts, and the numbers that they name
    decide: Callable[[Sequence[Cell]], Decisions] | None = None
    excerpt: page.Excerpt | None = None  # selects what is shown first
    as_grids: bool = False  # shows losses in grids, and rows only in the CSV

    @property
    def where(self) -> str:
        """Where in the paper, as "Table 1"."""
        return self.text.where

    @property
    def title(self) -> str:
        """What is shown."""
        return self.text.title

    def applicable(self, options: Sequence[str]) -> Sequence[str]:
        """The user's options that apply to its runs: all."""
        return options

    def plan_work(self, request: PartRequest) -> list[RowWork]:
        """The table's runs; the paper's numbers are not those of other settings."""
        rows = self.rows(request.scale, request.options)
        changed = {option_name(option) for option in result_options(request.options)} - SAME_SETTING
        if any(option_group(name) in SETTING for name in changed):
            rows = [dataclasses.replace(row, reported=None) for row in rows]
        return [RowWork.of(request.name, row) for row in rows]

    def numbers(self, work: Sequence[RowWork]) -> pd.DataFrame:
        """One line per run, finished or not, with the paper's numbers and the commit."""
        cells = [item.cell() for item in work]
        commits = [cell.result and cell.result.commit for cell in cells]
        return row_numbers.numbers(cells).assign(commit=commits)

    def decide_claims(self, work: Sequence[RowWork]) -> list[Claim]:
        """The statements that the finished runs decide."""
        return self.claims([item.cell() for item in work])

    def claims(self, cells: Sequence[Cell]) -> list[Claim]:
        """The statements of the paper with their verdicts."""
        return [] if self.decide is None else self.text.claims(self.decide(cells))

    def make_page(self, heading: page.Heading, work: Sequence[RowWork]) -> page.Page:
        """The page; unfinished runs appear as "not run"."""
        cells = [item.cell() for item in work]
        done = [cell for cell in cells if cell.result is not None]
        missing = [cell for cell in cells if cell.result is None]
        lacking, commands = [cell.name for cell in missing], [cell.command for cell in missing]
        claims = page.Claims(tuple(self.claims(cells)), bool(missing))
        caption, details = page.caption_and_details(self.text.caption)
        readings = [details, READING.caption, _reading("against the target")]
        if any(cell.compared for cell in done):
            readings.append(_reading("against the paper"))
        notes = [page.Text(reading, "reading") for reading in readings]
        summary = row_numbers.summarize(cells)
        progress = f"{len(done)} of {len(cells)} runs finished"
        title = f"{heading.title}; {progress}. {caption}"
        if not self.as_grids:
            short, whole = row_numbers.excerpt(summary), page.WHOLE if self.excerpt else ""
            shown = page.shorten(short, self.excerpt)
            first: list[page.Block] = [page.Table(shown, row_numbers.FORMATS)]
            not_run = "\n".join(["Not run:\n", *(f"    {command}" for command in commands)])
            rest: list[page.Block] = [page.Table(summary, row_numbers.FORMATS, whole)]
            rest += [page.Text(not_run, "beside")] if commands else []
            table = latex(summary, row_numbers.FORMATS, caption=title, label=heading.label)
        else:
            # Before the grids, the paper's table with ours at its setting, if a run exists there.
            overview = page.Table(grids.overview(cells), grids.FORMATS)
            named = grids.grids(cells).items()
            first = [overview, page.Text(_legend(cells))]
            first += [page.Table(frame, title=name) for name, frame in named]
            rest, table = [], _latex_grids(cells, title, heading)
            if printed := grids.as_printed(cells):
                impossible = any(not cell.row.possible for cell in cells)
                in_print = page.Text(READING.sentence("bracketed" if impossible else "in print"))
                rest = first
                first = [in_print, *(_in_print(way, *at) for way, at in printed.items())]
        blocks: list[page.Block] = [page.Text(caption), *first, claims, page.RULE, *rest, *notes]
        if not done:
            return page.Page(heading, progress, blocks, lacking=lacking, commands=commands)
        blocks.append(page.Text("The CSV has every number and each row's command.", "beside"))
        blocks.append(page.Text(_origin(done), "origin"))
        return page.Page(
            heading,
            progress,
            blocks,
            tables.csv(row_numbers.numbers(cells)),
            table,
            None if self.draw is None else functools.partial(self.draw, done),
            [
                page.FinishedRun(cell.name, cell.folder.name, result, cell.command)
                for cell, result in zip(done, results_of(done), strict=True)
            ],
            lacking,
            commands,
            {
                "runs": f"{len(done)} of {len(cells)}",
                "target": verdicts.counted(cell.against_target for cell in done),
                "reported": verdicts.counted(cell.against_paper for cell in done),
            },
        )


def list_rows(
    heading: str,
    common: Sequence[str],
    scales: Mapping[str, Sequence[str]],
    runs: Mapping[str, Sequence[str]],
    reported: Mapping[str, verdicts.Reported] | None = None,
) -> Callable[[str, Sequence[str]], list[Row]]:
    """The rows of a table that lists its runs by name.

    Args:
        heading: the heading of the names.
        common: overrides of all runs.
        scales: overrides by scale.
        runs: overrides by the run's name.
        reported: the paper's numbers by the run's name.

    Returns:
        A function of the scale and the user's options, for ``RunTable``. It raises ``UserError``
        for an option that a run sets.
    """
    compared = {option_name(override) for overrides in runs.values() for override in overrides}

    def rows(scale: str, options: Sequence[str]) -> list[Row]:
        refuse_compared(options, compared)
        after, printed = (*scales[scale], *options), reported or {}
        return [
            Row({heading: name}, (*common, *overrides, *after), printed.get(name))
            for name, overrides in runs.items()
        ]

    return rows


def _reading(name: str) -> str:
    return READING.sentence(name, **LIMITS)


def _in_print(way: str, frame: pd.DataFrame | None, run: Sequence[Cell]) -> page.Block:
    """The grid of the paper's setting, or an equivalent sentence."""
    changed = row_numbers.changed_predictions(run) or ""
    unchanged = changed.startswith("0 of") and "counted" not in changed  # of all seeds
    if frame is not None and not unchanged:
        return page.Table(frame, title=f"Rebuilt by {way}")
    numbers = {"way": way, "changed": changed, "cells": len(run)}
    return page.Text(READING.sentence("unchanged" if run else "nothing run", **numbers))


def _legend(cells: Sequence[Cell]) -> str:
    """The explanation of a grid's cells."""
    marked = any(cell.compared and cell.result is not None for cell in cells)
    return " ".join(map(_reading, ("losses", "marks") if marked else ("losses",)))


def _latex_grids(cells: Sequence[Cell], caption: str, heading: page.Heading) -> str:
    """The overview with the caption, then a table per grid."""
    parts = [latex(grids.overview(cells), grids.FORMATS, caption=caption, label=heading.label)]
    for name, frame in grids.grids(cells).items():
        label = "-".join([heading.label, *re.findall(r"\w+", name)])
        title = f"{heading.paper}, {heading.part.where}, {name}. {_legend(cells)}"
        parts.append(latex(frame, caption=title, label=label))
    return "\n".join(parts)


def _origin(cells: Sequence[Cell]) -> str:
    """Where the numbers come from: commits, devices, data, time."""
    results = results_of(cells)
    training = {result.target.folder: result.target.seconds for result in results}
    solving = math.fsum(result.seconds for result in results)
    return (
        f"{page.listed_commits(result.commit or 'installed' for result in results)}; "
        f"{page.listed(page.device_name(result.device) for result in results)}; "
        f"data {page.listed(result.data.checksum[:12] for result in results)}; "
        f"{solving / 60:.0f} min of solving and testing, "
        f"{math.fsum(training.values()) / 60:.0f} min of training."
    )
