"""A table of runs of the main job: its rows, its page, and the claims that they decide."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from bnrecon.reporting import figures, tables
from bnrecon.reporting.latex import latex
from bnrecon.reproduction.experiment import Claim
from bnrecon.reproduction.page import (
    RULE,
    Block,
    Claims,
    Comparison,
    FinishedRun,
    Heading,
    NotRun,
    Page,
    Table,
    Text,
    caption_and_details,
    device_name,
    listed,
    listed_commits,
)
from bnrecon.reproduction.study import PartRequest
from bnrecon.reproduction.texts import Decisions, read_text
from bnrecon.studies.burkholz2024.run_tables import grids, row_numbers
from bnrecon.studies.burkholz2024.run_tables.row import Cell, Grid, Row, RowWork, results_of
from bnrecon.studies.burkholz2024.run_tables.verdicts import (
    EQUIVALENT,
    RESERVE,
    SIGNIFICANT,
    Reported,
    counted,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

READING = read_text(__file__)  # how tables of runs are to be read
LIMITS = {"equivalent": EQUIVALENT, "reserve": RESERVE, "significant": SIGNIFICANT}


@dataclass(frozen=True)
class RunTable:
    """A table of runs, bound to ``PART`` in one file of a paper's folder.

    Args:
        where: where in the paper, as "Table 1".
        title: what is shown.
        rows: called with the scale and the user's options. Raises ``UserError`` for an option by
            which the rows differ.
        caption: what the reader has to know beside the common explanation of columns; its first
            paragraph stands above the table, the others below.
        draw: makes the figure of the finished rows, or ``None`` where there is nothing to draw.
        grid: shows the losses in grids, and the rows themselves in the CSV only.
        claims: the statements of the paper that the rows decide, with their verdicts.
    """

    where: str
    title: str
    rows: Callable[[str, Sequence[str]], Sequence[Row]]
    caption: str = ""
    draw: Callable[[Sequence[Cell]], Figure | None] | None = None
    grid: Grid | None = None
    claims: Callable[[Sequence[Cell]], Sequence[Claim]] | None = None
    takes_options: ClassVar[bool] = True

    def plan_work(self, request: PartRequest) -> list[RowWork]:
        """Its runs."""
        rows = self.rows(request.scale, request.options)
        return [RowWork.of(request.name, row) for row in rows]

    def numbers(self, work: Sequence[RowWork]) -> pd.DataFrame:
        """A line a run, also where it is not finished, with what the paper prints and commit."""
        cells = [item.cell() for item in work]
        commits = [cell.result and cell.result.commit for cell in cells]
        return row_numbers.numbers(cells).assign(commit=commits)

    def decide_claims(self, work: Sequence[RowWork]) -> list[Claim]:
        """The statements that the finished runs decide."""
        return [] if self.claims is None else list(self.claims([item.cell() for item in work]))

    def make_page(self, heading: Heading, work: Sequence[RowWork]) -> Page:
        """The page of its rows or grids."""
        return _make_page(self, heading, [item.cell() for item in work])


def list_rows(
    heading: str,
    common: Sequence[str],
    scales: Mapping[str, Sequence[str]],
    runs: Mapping[str, Sequence[str]],
    reported: Mapping[str, Reported] | None = None,
) -> Callable[[str, Sequence[str]], list[Row]]:
    """The rows of a table that lists its runs by name.

    Args:
        heading: what the names are called.
        common: overrides of all runs.
        scales: overrides by scale.
        runs: overrides by the run's name.
        reported: the paper's numbers by the run's name.

    Returns:
        A function of the scale and the user's options, for ``RunTable``.
    """

    def rows(scale: str, options: Sequence[str]) -> list[Row]:
        return [
            Row(
                {heading: name},
                (*common, *overrides, *scales[scale], *options),
                (reported or {}).get(name),
            )
            for name, overrides in runs.items()
        ]

    return rows


def run_table(
    module: str,
    rows: Callable[[str, Sequence[str]], Sequence[Row]],
    draw: Callable[[Sequence[Cell]], Figure | None] | None = None,
    grid: Grid | None = None,
    decide: Callable[[Sequence[Cell]], Decisions] | None = None,
) -> RunTable:
    """A table of runs whose place, title, caption and claims stand in the file beside its module.

    Args:
        module: its ``__file__``.
        rows: as ``RunTable`` has them, like ``draw`` and ``grid``.
        draw: of the finished rows.
        grid: of the rows.
        decide: the claims' verdicts and the numbers that they name.
    """
    text = read_text(module)
    claims = None if decide is None else lambda cells: text.claims(decide(cells))
    return RunTable(text.where, text.title, rows, text.caption, draw, grid, claims)


def _make_page(part: RunTable, heading: Heading, cells: Sequence[Cell]) -> Page:
    """The page of a table of runs; what is not finished stands there as "not run"."""
    done = [cell for cell in cells if cell.result is not None]
    missing = [cell for cell in cells if cell.result is None]
    lacking, commands = [cell.name for cell in missing], tuple(cell.command for cell in missing)
    claims = Claims(tuple(part.claims(cells)) if part.claims else ())
    caption, details = caption_and_details(part.caption)
    notes: list[Block] = [Text(details, "reading")]
    notes += [Text(READING.caption, "reading"), Text(_reading("against the target"), "reading")]
    if any(cell.compared for cell in done):
        notes += [Text(_reading("against the paper"), "reading")]
    summary = row_numbers.summarize(cells)
    if part.grid is None:
        first: list[Block] = [Table(row_numbers.excerpt(summary), row_numbers.FORMATS)]
        rest: list[Block] = [Table(summary, row_numbers.FORMATS), NotRun(commands)]
    else:
        first, rest = _printed(cells, part.grid), _grids(cells, part.grid)
        first, rest = first or rest, rest if first else []
    blocks: list[Block] = [Text(caption), *first, claims, RULE, *rest, *notes]
    progress = f"{len(done)} of {len(cells)} runs finished"
    if not done:
        return Page(heading, progress, blocks, lacking=lacking, commands=commands)
    with figures.style():
        figure = None if part.draw is None else part.draw(done)
    blocks += [
        Text("The CSV has every number and each row's command.", "beside"),
        Text(_origin(done), "origin"),
    ]
    caption = f"{heading.title}; {progress}. {caption}"
    if part.grid is None:
        table = latex(summary, row_numbers.FORMATS, caption=caption, label=heading.label)
    else:
        table = _latex_grids(cells, part.grid, caption, heading)
    return Page(
        heading,
        progress,
        blocks,
        tables.csv(row_numbers.numbers(cells)),
        table,
        figure,
        [
            FinishedRun(cell.name, cell.folder.name, cell.result, cell.command)
            for cell in done
            if cell.result is not None
        ],
        lacking,
        commands,
        _comparison(done, len(cells)),
    )


def _reading(name: str) -> str:
    return READING.sentence(name, **LIMITS)


def _comparison(done: Sequence[Cell], total: int) -> Comparison:
    """How often each verdict came out."""
    return Comparison(
        f"{len(done)} of {total}",
        counted(cell.against_target for cell in done),
        counted(cell.against_paper for cell in done),
    )


def _legend(cells: Sequence[Cell]) -> str:
    """What stands in the cells of grids."""
    marked = any(cell.compared and cell.result is not None for cell in cells)
    return " ".join(map(_reading, ("losses", "marks") if marked else ("losses",)))


def _printed(cells: Sequence[Cell], grid: Grid) -> list[Block]:
    """The paper's table with ours at its own setting; nothing where none is run there."""
    printed = grids.as_printed(cells, grid, grid.way) if grid.way else {}
    tables = [Table(frame, title=name) for name, frame in printed.items()]
    return [Text(READING.sentence("in print")), *tables] if tables else []


def _grids(cells: Sequence[Cell], grid: Grid) -> list[Block]:
    """The overview, and each grid under its name."""
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


def _origin(cells: Sequence[Cell]) -> str:
    """Where the numbers come from: commits, devices, data, time."""
    results = results_of(cells)
    training = {result.target.folder: result.target.seconds for result in results}
    solving = sum(result.seconds for result in results)
    return (
        f"{listed_commits(result.commit or 'installed' for result in results)}; "
        f"{listed(device_name(result.device) for result in results)}; "
        f"data {listed(result.data.checksum[:12] for result in results)}; "
        f"{solving / 60:.0f} min of solving and testing, "
        f"{sum(training.values()) / 60:.0f} min of training."
    )
