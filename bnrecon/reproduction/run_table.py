"""A table of runs of the main job: one row per run, the paper's numbers beside the reproduced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from bnrecon.config.schema import RunConfig
from bnrecon.reporting.result import RunResult
from bnrecon.reporting.run_tables import evaluated_on
from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.row_command import command_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "FORMATS",
    "Cell",
    "Reported",
    "Row",
    "RunTable",
    "list_rows",
    "numbers",
    "summarize",
    "verdict",
]

FORMATS = {
    "reported: target": ".2f",
    "reported: loss": ".2f",
    "reproduced: target": ".2f",
    "loss, reproduced minus reported": "+.2f",
    "rebuilt, reproduced minus reported": "+.2f",
    "max. layer error": ".1e",
    "median layer error": ".1e",
    "max. logit difference": ".1e",
}
IN_CSV_ONLY = ["test images", "layers", "run", "command"]


@dataclass(frozen=True)
class Reported:
    """What a paper prints of a run, in percent.

    Args:
        target: accuracy of the target.
        rebuilt: accuracy of the rebuilt network.
        half_width: half-width of its interval over three source networks.
        rounding: half a unit of the last printed digit of ``rebuilt``.
        text: ``rebuilt`` and ``half_width`` as printed.
    """

    target: float
    rebuilt: float
    half_width: float
    rounding: float = 0.0
    text: str = ""

    @classmethod
    def printed(cls, target: float, rebuilt: str, half_width: str) -> Reported:
        """Read numbers as they are printed.

        >>> Reported.printed(94.12, "94.0", "0.1").rounding
        0.05
        """
        rounding = 0.5 * 10.0 ** -len(rebuilt.partition(".")[2])
        return cls(target, float(rebuilt), float(half_width), rounding, f"{rebuilt} ± {half_width}")

    @property
    def loss(self) -> float:
        """Accuracy of the target minus that of the rebuilt network."""
        return self.target - self.rebuilt


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
    """

    where: str
    title: str
    rows: Callable[[str, Sequence[str]], Sequence[Row]]
    caption: str = ""
    draw: Callable[[Sequence[Cell]], Figure | None] | None = None


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


def verdict(loss: Interval, reported: Reported | None, possible: bool = True) -> str:
    """Compare the reproduced loss of accuracy with the reported: do their 95% intervals meet?

    Half a unit of the last printed digit is allowed for.

    >>> verdict(Interval(0.0, 0.0, 3), Reported(94.12, 93.9, 0.1))
    'smaller loss than reported'
    >>> verdict(Interval(0.05, 0.1, 3), Reported(94.12, 94.1, 0.08))
    'agrees'
    """
    if reported is None:
        return ""
    if not possible:
        return "reported accuracy is impossible"
    if loss.half_width is None:
        return "one seed, no interval"
    reach = loss.half_width + reported.half_width + reported.rounding
    if abs(loss.mean - reported.loss) <= reach + 1e-9:
        return "agrees"
    return f"{'smaller' if loss.mean < reported.loss else 'larger'} loss than reported"


def numbers(cells: Sequence[Cell], absolute: bool) -> pd.DataFrame:
    """One line per row: numbers, intervals over source seeds, and the command of the run.

    Args:
        cells: the rows with their results.
        absolute: the runs are at the paper's scale, so that accuracies compare, not only losses.
    """
    frame = pd.DataFrame([_line(cell, absolute) for cell in cells], dtype=object)
    order = [name for name in _COLUMNS if name in frame]
    labels = [name for name in frame if name not in _COLUMNS]
    return frame[[*labels, *order]]


_COLUMNS = (
    "width",
    "reported: target",
    "reported: rebuilt",
    "reported: loss",
    "reproduced: target",
    "reproduced: rebuilt",
    "reproduced: loss (paired by seed)",
    "loss, reproduced minus reported",
    "rebuilt, reproduced minus reported",
    "max. layer error",
    "median layer error",
    "layers not converged",
    "layers",
    "evaluated on",
    "test images",
    "max. logit difference",
    "values outside the linear range",
    "verdict",
    "run",
    "command",
)


def _line(cell: Cell, absolute: bool) -> dict[str, Any]:
    row, result, reported = cell.row, cell.result, cell.row.reported
    line: dict[str, Any] = {**row.labels, "width": cell.config.target.width}
    if reported is not None:
        line["reported: target"] = reported.target
        line["reported: rebuilt"] = Interval(reported.rebuilt, reported.half_width, 3)
        line["reported: loss"] = reported.loss if row.possible else None
    if result is None:
        return line | {"verdict": "not run", "command": command_of(cell)}
    line |= {
        "reproduced: target": result.target.accuracy,
        "reproduced: rebuilt": result.accuracy,
        "reproduced: loss (paired by seed)": result.loss,
    }
    if reported is not None and row.possible:
        line["loss, reproduced minus reported"] = result.loss.mean - reported.loss
        if absolute:
            difference = result.accuracy.mean - reported.rebuilt
            line["rebuilt, reproduced minus reported"] = difference
    errors = sorted(layer.relative_error for layer in result.layers)
    line |= {
        "max. layer error": errors[-1],
        "median layer error": errors[len(errors) // 2],
        "layers not converged": len(result.unconverged),
        "layers": len(errors),
        "evaluated on": evaluated_on(result),
        "test images": result.target.images,
        "max. logit difference": result.evaluation.largest_difference_to_target,
    }
    if result.outside_linear_region:
        line["values outside the linear range"] = result.outside_linear_region
    return line | {
        "verdict": verdict(result.loss, reported, row.possible),
        "run": cell.folder.name,
        "command": command_of(cell),
    }


def summarize(cells: Sequence[Cell], absolute: bool) -> pd.DataFrame:
    """The table for readers: no empty columns, and the paper's digits as printed."""
    frame = numbers(cells, absolute)
    if "reported: rebuilt" in frame:
        frame["reported: rebuilt"] = [
            "" if cell.row.reported is None else cell.row.reported.text for cell in cells
        ]
        frame["reported: loss"] = [
            loss if cell.row.possible else "impossible"
            for cell, loss in zip(cells, frame["reported: loss"], strict=True)
        ]
    if "layers" in frame:
        frame["layers not converged"] = [
            None if cell.result is None else f"{len(cell.result.unconverged)} of {layers}"
            for cell, layers in zip(cells, frame["layers"], strict=True)
        ]
    frame = frame.drop(columns=IN_CSV_ONLY, errors="ignore")
    filled = frame.notna() & (frame != "")
    return frame.loc[:, filled.any()]
