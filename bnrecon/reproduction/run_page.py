"""The page of a table of runs: its rows or its grids, how to read them, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from bnrecon.reporting import figures, tables
from bnrecon.reporting.latex import latex
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction import grids, row_numbers
from bnrecon.reproduction.page import Heading, Page, device_name, listed
from bnrecon.reproduction.row_command import command_of
from bnrecon.reproduction.run_table import Cell, Grid, RunTable
from bnrecon.reproduction.verdicts import EQUIVALENT

__all__ = ["run_page"]

COLUMNS = (
    "Accuracies are in percent, loss is target minus rebuilt, ± is the half-width of the 95% "
    "Student-t interval over source seeds (n); all seeds of a row have the same target. c1/n is "
    "features over equations of a layer. Layer errors are relative errors of the rebuilt weights, "
    'the largest of all layers and seeds: in float64 as solved, and "as assembled" in the '
    "network's own float32. Predicted otherwise: test images, summed over seeds, to which target "
    "and rebuilt network give different classes. McNemar's exact test, one a seed, is of their "
    'being equally often right. The images of "evaluated on" went through the real source '
    "network, the others through its collapsed form; max. logit difference is to the target, on "
    "the former."
)
AGAINST_TARGET = (
    'Against the target: "identical predictions" if no image of any seed is predicted otherwise; '
    f'"equivalent within {EQUIVALENT}" if the loss\'s whole interval lies within ±{EQUIVALENT} '
    f'points; "different" if it excludes 0 and reaches beyond ±{EQUIVALENT}; else "cannot tell".'
)
AGAINST_PAPER = (
    'Against the paper\'s loss: "loss reproduced" only if our whole interval lies within the '
    "reported loss ± its half-width and the rounding of all that is printed, so that a wider "
    'interval of ours is never more agreement; "different" if the two do not meet; else "cannot '
    'tell". {count} losses are compared.'
)
SMALLER = "At this scale accuracies themselves are not compared: the targets are smaller."


def run_page(part: RunTable, heading: Heading, cells: Sequence[Cell]) -> Page:
    """The page of a table of runs; what is not finished stands there as "not run"."""
    done = [cell for cell in cells if cell.result is not None]
    absolute = heading.scale == "paper"
    reported = sum(cell.row.reported is not None and cell.row.possible for cell in done)
    notes = [part.caption, COLUMNS, AGAINST_TARGET]
    if reported:
        compared = AGAINST_PAPER.format(count=reported)
        notes.append(compared if absolute else f"{compared} {SMALLER}")
    shown = _rows(cells, absolute) if part.grid is None else _grids(cells, part.grid)
    body = [shown, *notes, *(_missing(cells) if part.grid is None else ())]
    progress = f"{len(done)} of {len(cells)} runs finished"
    if not done:
        return Page(heading.page(progress, body))
    with figures.style():
        figure = None if part.draw is None else part.draw(done)
    body += ["The CSV has every number and each row's command.", _origin(done)]
    caption = f"{heading.title}; {progress}. {part.caption}"
    return Page(
        heading.page(progress, body, figure is not None),
        tables.csv(row_numbers.numbers(cells, absolute)),
        _latex_rows(cells, absolute, caption, heading.label)
        if part.grid is None
        else _latex_grids(cells, part.grid, caption, heading),
        figure,
    )


def _rows(cells: Sequence[Cell], absolute: bool) -> str:
    return tables.markdown(row_numbers.summarize(cells, absolute), row_numbers.FORMATS)


def _latex_rows(cells: Sequence[Cell], absolute: bool, caption: str, label: str) -> str:
    frame = row_numbers.summarize(cells, absolute)
    return latex(frame, row_numbers.FORMATS, caption=caption, label=label)


LOSSES = (
    "In the cells: loss of accuracy, reproduced / reported, and the verdict against the paper's "
    "loss (= loss reproduced, ≠ different, ? cannot tell). Accuracy of the target: reproduced / "
    "reported."
)


def _grids(cells: Sequence[Cell], grid: Grid) -> str:
    """The overview, then each grid under its name."""
    parts = [tables.markdown(grids.overview(cells, grid), grids.FORMATS), LOSSES]
    for name, frame in grids.grids(cells, grid).items():
        parts += [f"**{name}**", tables.markdown(frame)]
    return "\n\n".join(parts)


def _latex_grids(cells: Sequence[Cell], grid: Grid, caption: str, heading: Heading) -> str:
    """The overview with the caption, then a table for each grid."""
    overview = grids.overview(cells, grid)
    parts = [latex(overview, grids.FORMATS, caption=caption, label=heading.label)]
    for name, frame in grids.grids(cells, grid).items():
        label = "-".join([heading.label, *name.replace(",", "").split()])
        title = f"{heading.paper}, {heading.part.where}, {name}. {LOSSES}"
        parts.append(latex(frame, caption=title, label=label))
    return "\n".join(parts)


def _missing(cells: Sequence[Cell]) -> list[str]:
    """The commands of what is not run."""
    lines = [f"    {command_of(cell)}" for cell in cells if cell.result is None]
    return ["Not run:\n\n" + "\n".join(lines)] if lines else []


def _origin(cells: Sequence[Cell]) -> str:
    """Where the numbers come from: commits, devices, data, time."""
    found: list[RunResult] = [cell.result for cell in cells if cell.result is not None]
    training = {result.target.folder: result.target.seconds for result in found}
    solving = sum(result.seconds for result in found)
    return (
        f"Commits {listed(result.commit or 'installed' for result in found)}; "
        f"{listed(device_name(result.device) for result in found)}; "
        f"data {listed(result.data.checksum[:12] for result in found)}; "
        f"{solving / 60:.0f} min of solving and testing, "
        f"{sum(training.values()) / 60:.0f} min of training."
    )
