"""The page of a table of runs: its rows or its grids, how to read them, and what is missing."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bnrecon.reporting import figures, tables
from bnrecon.reporting.latex import latex
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction import grids, row_numbers
from bnrecon.reproduction.page import (
    Beside,
    Block,
    Claims,
    Heading,
    NotRun,
    Origin,
    Page,
    Reading,
    Table,
    Text,
    device_name,
    listed,
    listed_commits,
)
from bnrecon.reproduction.row_command import command_of
from bnrecon.reproduction.run_table import Cell, Grid, RunTable
from bnrecon.reproduction.verdicts import EQUIVALENT, RESERVE, SIGNIFICANT

__all__ = ["run_page"]

COLUMNS = (
    "Accuracies are in percent, loss is target minus rebuilt, ± is the half-width of the 95% "
    "Student-t interval over source seeds (n); all seeds of a row have the same target. c1/n is "
    "features over equations of a layer. Layer errors are relative errors of the rebuilt weights, "
    'the largest of all layers and seeds: in float64 as solved, and "as assembled" in the '
    "network's own float32. Predicted otherwise: test images, summed over the seeds that were "
    "counted, to which target and rebuilt network give different classes. McNemar p: of the exact "
    "test, one a seed, that the two are equally often right; with k such tests the smallest p is "
    "significant below 0.05 / k. Of several cells also how many p are below 0.05 and how many "
    "would be on average by chance: less than one in twenty, as p has few values where few images "
    "tell (networks of one target share its test images, so that their tests are not independent). "
    "Layers not converged: the error as solved is above the solver's tolerance, or the one "
    "as assembled above 1.2e-4, which is rounding to float32 made worse by large scales, or an "
    "output is off by more than the ε that an activation was given. Layers at the LBFGS limit: "
    'LBFGS was stopped by its limit of iterations. The images of "evaluated on" went through the '
    "real source network, the others through its collapsed form, whose weights are composed in "
    "float64 and which therefore lacks the float32 network's own rounding. Where predictions are "
    "compared, "
    "those images are the ones whose two largest logits of the target are nearest to each other. "
    "Max. logit difference is between source and target, on the same images. Of an image that "
    "went through the collapsed form only, the real network can give another class only if one of "
    "its logits is off by more than the smallest reserve times the largest difference seen."
)
AGAINST_TARGET = (
    'Against the target: "identical predictions" if no image of any seed is predicted otherwise '
    f"and all went through the real source network or have a reserve of at least {RESERVE:g}; "
    '"identical where tested" if no image is predicted otherwise but some that went through the '
    "collapsed form only have less reserve, or a result of an earlier version does not say; "
    f'"accuracy equivalent within {EQUIVALENT}" if the loss\'s whole interval lies within '
    f'±{EQUIVALENT} points; "different" if it excludes 0 and reaches beyond ±{EQUIVALENT} or, with '
    f"one seed, which has no interval, if McNemar's p is below {SIGNIFICANT} and the loss beyond "
    f'±{EQUIVALENT}; else "inconclusive". Each cell is decided alone: where two networks are '
    "equally often right, at most one cell in twenty is called different by chance."
)
AGAINST_PAPER = (
    "Against the paper: its loss may be anywhere within the reported one ± its half-width and the "
    'rounding of all that is printed. "Loss reproduced" if that excludes 0 and our whole interval '
    'lies within it, so that a wider interval of ours is never more agreement; "no more than '
    'reported" if it contains 0 and our whole interval lies within it; "different (smaller)" or '
    '"(larger)" if the two do not meet; else "inconclusive", as for one seed. "Not compared" where '
    "the paper's target is of another width: its solver's error grows with n."
)
SMALLER = "At this scale accuracies themselves are not compared: the targets are smaller."


def run_page(part: RunTable, heading: Heading, cells: Sequence[Cell]) -> Page:
    """The page of a table of runs; what is not finished stands there as "not run"."""
    done = [cell for cell in cells if cell.result is not None]
    absolute = heading.scale == "paper"
    compared = _compared(done)
    claims = Claims(tuple(part.claims(cells)) if part.claims else ())
    notes: list[Block] = [Text(part.caption), claims, Reading(COLUMNS), Reading(AGAINST_TARGET)]
    if compared:
        notes += [Reading(AGAINST_PAPER), Text(f"{compared}{'' if absolute else f' {SMALLER}'}")]
    shown = _rows(cells, absolute) if part.grid is None else _grids(cells, part.grid)
    blocks: list[Block] = [*shown, *notes, *([] if part.grid else [_not_run(cells)])]
    progress = f"{len(done)} of {len(cells)} runs finished"
    lacking = [cell.name for cell in cells if cell.result is None]
    if not done:
        return Page(heading, progress, blocks, results=cells, lacking=lacking)
    with figures.style():
        figure = None if part.draw is None else part.draw(done)
    blocks += [Beside("The CSV has every number and each row's command."), Origin(_origin(done))]
    caption = f"{heading.title}; {progress}. {part.caption}"
    return Page(
        heading,
        progress,
        blocks,
        tables.csv(row_numbers.numbers(cells, absolute)),
        _latex_rows(cells, absolute, caption, heading.label)
        if part.grid is None
        else _latex_grids(cells, part.grid, caption, heading),
        figure,
        cells,
        lacking,
    )


def _compared(done: Sequence[Cell]) -> str:
    """How many comparisons with the paper are made, and with how many of its numbers."""
    cells = [cell for cell in done if cell.compared]
    if not cells:
        return ""
    printed = {
        (cell.config.data.name, cell.config.features.name, cell.row.reported) for cell in cells
    }
    alone = sum(len(cell.result.seeds) == 1 for cell in cells if cell.result)
    single = f"; rows of one seed: {alone}" if alone else ""
    rows = "1 row is" if len(cells) == 1 else f"{len(cells)} rows are"
    many = "" if len(printed) == 1 else "es"
    return f"{rows} compared with {len(printed)} printed loss{many}{single}."


def _rows(cells: Sequence[Cell], absolute: bool) -> list[Block]:
    return [Table(row_numbers.summarize(cells, absolute), row_numbers.FORMATS)]


def _latex_rows(cells: Sequence[Cell], absolute: bool, caption: str, label: str) -> str:
    frame = row_numbers.summarize(cells, absolute)
    return latex(frame, row_numbers.FORMATS, caption=caption, label=label)


LOSSES = (
    "In the cells: loss of accuracy, reproduced / reported. Accuracy of the target: reproduced / "
    "reported."
)
MARKS = (
    'Behind them the verdict against the paper: = "loss reproduced"; (0) "no more than reported"; '
    '≠ "different"; ? "inconclusive"; none where the paper\'s target is of another width.'
)


def _legend(cells: Sequence[Cell]) -> str:
    """What stands in the cells of grids."""
    marked = any(cell.compared and cell.result is not None for cell in cells)
    return f"{LOSSES} {MARKS}" if marked else LOSSES


def _grids(cells: Sequence[Cell], grid: Grid) -> list[Block]:
    """The overview, then each grid under its name."""
    named = grids.grids(cells, grid).items()
    return [
        Table(grids.overview(cells, grid), grids.FORMATS),
        Text(_legend(cells)),
        *(Table(frame, title=name) for name, frame in named),
    ]


def _latex_grids(cells: Sequence[Cell], grid: Grid, caption: str, heading: Heading) -> str:
    """The overview with the caption, then a table for each grid."""
    overview = grids.overview(cells, grid)
    parts = [latex(overview, grids.FORMATS, caption=caption, label=heading.label)]
    for name, frame in grids.grids(cells, grid).items():
        label = "-".join([heading.label, *re.findall(r"\w+", name)])
        title = f"{heading.paper}, {heading.part.where}, {name}. {_legend(cells)}"
        parts.append(latex(frame, caption=title, label=label))
    return "\n".join(parts)


def _not_run(cells: Sequence[Cell]) -> NotRun:
    return NotRun(tuple(command_of(cell) for cell in cells if cell.result is None))


def _origin(cells: Sequence[Cell]) -> str:
    """Where the numbers come from: commits, devices, data, time."""
    found: list[RunResult] = [cell.result for cell in cells if cell.result is not None]
    training = {result.target.folder: result.target.seconds for result in found}
    solving = sum(result.seconds for result in found)
    return (
        f"{listed_commits(result.commit or 'installed' for result in found)}; "
        f"{listed(device_name(result.device) for result in found)}; "
        f"data {listed(result.data.checksum[:12] for result in found)}; "
        f"{solving / 60:.0f} min of solving and testing, "
        f"{sum(training.values()) / 60:.0f} min of training."
    )
