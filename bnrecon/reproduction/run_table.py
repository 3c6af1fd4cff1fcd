"""A table of runs of the main job: its rows, and how a grid of them lies beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bnrecon.config.schema import RunConfig
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction.experiment import Claim
from bnrecon.reproduction.verdicts import Reported, against_paper

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Cell", "Grid", "Reported", "Row", "RunTable", "list_rows"]


@dataclass(frozen=True)
class Row:
    """A row of a table: one run.

    Args:
        labels: by heading, what tells the row from the others; ``"solver"`` is what a study's
            solvers select by.
        overrides: of the run.
        reported: the paper's numbers, where it has any.
        possible: whether the paper's numbers can be right.
    """

    labels: Mapping[str, str]
    overrides: tuple[str, ...]
    reported: Reported | None = None
    possible: bool = True


@dataclass(frozen=True)
class Cell:
    """A row with its run: configuration, folder, and the result once it is finished."""

    row: Row
    config: RunConfig
    folder: Path
    result: RunResult | None

    @property
    def name(self) -> str:
        """What tells the row from the others."""
        return ", ".join(filter(None, self.row.labels.values()))

    @property
    def compared(self) -> bool:
        """Whether the paper has a loss for this row, of a target as wide."""
        reported = self.row.reported
        if reported is None or not self.row.possible:
            return False
        return reported.width in (None, self.config.target.width)

    @property
    def against_paper(self) -> str:
        """What the run's loss says of the paper's; nothing where there is none yet."""
        if self.result is None:
            return ""
        row, width = self.row, self.config.target.width
        return against_paper(self.result.loss, row.reported, row.possible, width)


@dataclass(frozen=True)
class Grid:
    """A table's runs as the paper prints them, in rows and columns; all four are labels of rows.

    Args:
        rows: the label that the grid's rows differ by.
        columns: the label that its columns differ by.
        by: the labels that the grids differ by.
    """

    rows: str
    columns: str
    by: tuple[str, ...]


@dataclass(frozen=True)
class RunTable:
    """A table of runs, bound to ``PART`` in one file of a paper's folder.

    Args:
        where: where in the paper, as "Table 1".
        title: what is shown.
        rows: called with the scale and the user's options. Raises ``UserError`` for an option by
            which the rows differ.
        caption: what the reader has to know beside the common explanation of columns.
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
