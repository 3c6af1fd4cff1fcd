"""A table of a paper as cells: the run that makes each one, what the paper reports, and the verdict."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bnrecon.reporting import tables
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.runtime.errors import UserError

__all__ = [
    "Cell",
    "Reported",
    "frame",
    "listed_cells",
    "reconstruction_cells",
    "refuse_compared",
    "verdict",
]


def refuse_compared(words: Sequence[str], compared: Collection[str]) -> None:
    """Raise ``UserError`` for a user's option that sets what a table's rows and columns are told apart by.

    >>> refuse_compared(["train.seed=7"], {"train.seed"})
    Traceback (most recent call last):
    bnrecon.runtime.errors.UserError: train.seed=7: that is what is compared here
    """
    for word in words:
        if word.lstrip("+~").partition("=")[0] in compared:
            raise UserError(f"{word}: that is what is compared here")


@dataclass(frozen=True)
class Reported:
    """What a paper prints: the target's accuracy, the rebuilt network's and the half-width of its interval, in percent.

    ``rounding`` is half a unit of the last digit printed of the rebuilt accuracy, ``text`` how it is printed.
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
        """Target minus rebuilt."""
        return self.target - self.rebuilt


@dataclass(frozen=True)
class Cell:
    """One cell: ``words`` are what `bnrecon run` is given; ``result`` its result.json, ``None`` where it was not run; ``width`` the target's.

    ``column`` and ``solver`` are empty in tables that have neither.

    ``reported`` is ``None`` where the paper has no number, ``usable=False`` where the one it prints is impossible.
    """

    table: str
    row: str
    column: str
    solver: str
    words: tuple[str, ...]
    reported: Reported | None
    usable: bool = True
    width: int | None = None
    result: dict[str, Any] | None = None

    @property
    def command(self) -> str:
        """What makes the cell."""
        return shlex.join(("bnrecon", "run", *self.words))

    @property
    def printed_command(self) -> str:
        """The same for a table that others read: it names no folder of this machine."""
        words = [word for word in self.words if not word.startswith(("outputs=", "targets="))]
        return shlex.join(
            (
                "bnrecon",
                "run",
                *("data.root=FOLDER" if w.startswith("data.root=") else w for w in words),
            )
        )

    @property
    def label(self) -> str:
        """Table, row, column and solver in words."""
        return " ".join(word for word in (self.table, self.row, self.column, self.solver) if word)

    def losses(self) -> list[float]:
        """Target minus rebuilt accuracy by seed, in percent."""
        return [
            self.result["target"]["accuracy"] - value for value in self.result["source"]["accuracy"]
        ]


def verdict(loss: Interval, reported: Reported | None, usable: bool) -> str:
    """Compare our paired loss with the paper's: do 95% intervals meet, its rounding allowed for?

    >>> verdict(Interval(0.0, 0.0, 3), Reported(94.12, 93.9, 0.1), True)
    'smaller loss than reported'
    >>> verdict(Interval(0.05, 0.1, 3), Reported(94.12, 94.1, 0.08), True)
    'agrees'
    """
    if reported is None:
        return ""
    if not usable:
        return "unusable in the paper; measured here"
    if loss.half_width is None:
        return "one seed, no interval"
    reach = (loss.half_width or 0.0) + reported.half_width + reported.rounding
    if abs(loss.mean - reported.loss) <= reach + 1e-9:
        return "agrees"
    return (
        "smaller loss than reported" if loss.mean < reported.loss else "larger loss than reported"
    )


def frame(cells: list[Cell], absolute: bool, heading: str = "target") -> pd.DataFrame:
    """One line a cell, its row under ``heading``; columns that would be empty are left out.

    ``absolute``: the runs are at the paper's scale, so that accuracies compare too, not only losses.
    """
    lines = []
    for cell in cells:
        line = {
            heading: cell.row,
            "features": cell.column,
            "solver": cell.solver,
            "width": cell.width or "",
        }
        if cell.reported is not None:
            line["paper: target"] = f"{cell.reported.target:.2f}"
            line["paper: rebuilt"] = cell.reported.text
            line["paper: loss"] = f"{cell.reported.loss:.2f}" if cell.usable else "impossible"
        if cell.result is None:
            lines.append(line | {"verdict": f"not run: {cell.printed_command}"})
            continue
        result, loss = cell.result, mean_interval(cell.losses())
        line["ours: target"] = (
            f"{result['target']['accuracy']:.2f} (n={result['target']['images']})"
        )
        line["ours: rebuilt"] = mean_interval(result["source"]["accuracy"]).format()
        line["ours: loss"] = loss.format()
        if cell.reported is not None and cell.usable:
            line["loss, ours minus paper"] = f"{loss.mean - cell.reported.loss:+.2f}"
        if absolute and cell.reported is not None and cell.usable:
            line["rebuilt, ours minus paper"] = (
                f"{mean_interval(result['source']['accuracy']).mean - cell.reported.rebuilt:+.2f}"
            )
        errors = sorted(layer["relative_error"] for layer in result["layers"])
        line["largest layer error"] = f"{errors[-1]:.1e}"
        line["median layer error"] = f"{errors[len(errors) // 2]:.1e}"
        unsolved = sum(not layer["converged"] for layer in result["layers"])
        line["not converged"] = f"{unsolved} of {len(result['layers'])}"
        line["real source on"] = tables.real_source_on(result["source"]["evaluated"])
        line["logits within"] = (
            f"{result['source']['evaluated']['largest_difference_to_target']:.1e}"
        )
        if outside := result["source"]["outside_linear_region"]:
            line["values outside the range"] = str(outside)
        lines.append(line | {"verdict": verdict(loss, cell.reported, cell.usable)})
    whole = pd.DataFrame(lines).fillna("")
    return whole.loc[:, (whole != "").any()]


def reconstruction_cells(
    study: dict[str, Any], table: str, scale: str, solver: str, words: Sequence[str] = ()
) -> list[Cell]:
    """The sixteen cells of Table 1 or 2: a row an activation of the target, a column a feature distribution.

    ``study`` is the study's yaml, ``solver`` "exact" or "paper", ``words`` further options of every run.
    """
    refuse_compared(
        words, ("features", "features.name", "target", "target.activation", "data", "data.name")
    )
    content = study["tables"][table]
    cells = []
    for activation, row in content["rebuilt"].items():
        for features, (mean, half_width) in row.items():
            given = [
                *content["words"],
                f"features={features}",
                *study["solvers"][solver],
                *study["scales"][scale][solver],
                *words,
            ]
            if activation != "relu":
                given.insert(len(content["words"]), f"target.activation={activation}")
            reported = Reported.printed(content["target"][activation], mean, half_width)
            usable = activation not in content.get("unusable", ())
            cells.append(Cell(table, activation, features, solver, tuple(given), reported, usable))
    return cells


def listed_cells(
    study: dict[str, Any], table: str, scale: str, words: Sequence[str] = ()
) -> list[Cell]:
    """The cells of a table that lists its runs in the study's yaml: a row a run, ``reported`` where the paper has a number for it."""
    content = study["tables"][table]
    cells = []
    for row, about in content["rows"].items():
        given = [*content["words"], *about["words"], *content["scales"][scale], *words]
        reported = Reported.printed(*about["reported"]) if "reported" in about else None
        cells.append(Cell(table, row, "", "", tuple(given), reported))
    return cells
