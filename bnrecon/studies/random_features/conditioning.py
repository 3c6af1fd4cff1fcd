"""Figure 2: what ill conditioning costs the paper's solvers, and bnrecon's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.construction.two_layer import linear_system
from bnrecon.features.drawing import draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.shapes import LayerShape
from bnrecon.operators.system import System
from bnrecon.reporting.figures import PAGE, new_figure
from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.solvers import SolverSpec, solve
from bnrecon.studies.random_features.averages import geometric_mean, intervals_by
from bnrecon.studies.random_features.feature_matrices import (
    COLOURS,
    FEATURES,
    ORTHOGONAL,
    target_weight,
)

__all__ = ["IDENTIFIED", "PART", "condition_number", "measure_errors"]

CPU = torch.device("cpu")
CHANNELS = {"smoke": (5,), "laptop": (10, 20, 30, 40, 50), "paper": (10, 20, 30, 40, 50)}
SEEDS = {"smoke": 2, "laptop": 10, "paper": 10}
LINES = {0: "-", 10: "--", 100: ":"}  # a line style for each excess, as in the paper
SOLVERS = {
    "lbfgs": "LBFGS",
    "svd_lbfgs": "SVD, LBFGS",
    "svd_lu_lbfgs": "SVD, solve, LBFGS",
    "auto": "bnrecon",
}
PANELS = (
    ("lbfgs", "(a) LBFGS"),
    (None, "(b) condition number"),
    ("svd_lbfgs", "(c) SVD, LBFGS"),
    ("svd_lu_lbfgs", "(d) SVD, solve, LBFGS"),
    ("auto", "bnrecon"),
)
IDENTIFIED = 1e7  # larger condition numbers cannot be identified in float32, the paper's precision
SMALLEST = 1e-18  # an error of 0 in logarithms


def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
    """One task for each size, excess and distribution."""
    return [
        Task(
            f"{channels}, {excess}, {label}",
            measure_errors,
            {
                "features": label,
                "channels": channels,
                "excess": excess,
                "seeds": SEEDS[scale],
            },
        )
        for channels in CHANNELS[scale]
        for excess in LINES
        for label, name in FEATURES.items()
        if excess == 0 or name not in ORTHOGONAL
    ]


def measure_errors(features: str, channels: int, excess: int, seeds: int) -> pd.DataFrame:
    """Solve M γ = vec(W) with every solver; the errors are computed in float64.

    Args:
        features: a distribution, by the paper's name; the target has the same one.
        channels: c0 = c2.
        excess: c1 - n.
        seeds: how many draws of features and target.

    Returns:
        One row for each seed and solver.
    """
    name, rows = FEATURES[features], []
    shape = LayerShape(channels, channels)
    for seed in range(seeds):
        pair = draw(name, shape, shape.equations + excess, seed, 0)
        matrix = feature_operator(pair, torch.float64, CPU)
        target = target_weight(name, channels, channels, seed)
        system = linear_system(matrix, target, orthogonal=name in ORTHOGONAL)
        row = {
            "features": features,
            "channels": channels,
            "excess": excess,
            "seed": seed,
            "condition_number": condition_number(matrix.dense()),
        }
        rows += [row | {"solver": solver} | _solve(solver, system, target) for solver in SOLVERS]
    return pd.DataFrame(rows)


def condition_number(matrix: torch.Tensor) -> float:
    """κ(M) of a matrix (n, c1) with c1 >= n.

    From the eigenvalues of M Mᵀ, three times faster than singular values; these are computed
    where the square has lost too many digits.
    """
    squares = torch.linalg.eigvalsh(matrix @ matrix.T)
    if squares[0] > 1e-12 * squares[-1]:
        return float((squares[-1] / squares[0]).sqrt())
    values = torch.linalg.svdvals(matrix)
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def _solve(solver: str, system: System, target: torch.Tensor) -> dict[str, Any]:
    try:
        solution = solve(system, SolverSpec(solver))
    except (UserError, RunError) as error:
        missing = dict.fromkeys(("rmse", "relative_rmse", "seconds"), float("nan"))
        return missing | {"failure": str(error).partition(":")[0]}
    residual = system.matrix.matvec(solution.scale) - target.reshape(-1)
    rmse = residual.square().mean().sqrt()
    return {
        "rmse": float(rmse),
        "relative_rmse": float(rmse / target.square().mean().sqrt()),
        "seconds": solution.report.seconds,
        "failure": "",
    }


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """The largest size: one row for each distribution and excess, one column for each solver."""
    channels = rows["channels"].max()
    lines = []
    largest = rows[rows["channels"] == channels]
    for (label, excess), group in largest.groupby(["features", "excess"], sort=False):
        condition = geometric_mean(group["condition_number"])
        note = " (not identifiable in float32)" if condition > IDENTIFIED else ""
        line = {
            "features": label,
            "channels c0 = c2": channels,
            "excess c1 - n": excess,
            "condition number": f"{condition:.3g}{note}",
        }
        for solver, title in SOLVERS.items():
            line[title] = _mean_error(group.loc[group["solver"] == solver, "relative_rmse"])
        lines.append(line | {"seeds": group["seed"].nunique()})
    return pd.DataFrame(lines)


def _mean_error(errors: pd.Series) -> str:
    errors = errors.dropna()
    if errors.empty:
        return "not applicable"
    return "0" if (errors == 0).all() else f"{geometric_mean(errors.clip(lower=SMALLEST)):.1e}"


def draw_figure(rows: pd.DataFrame) -> Figure:
    """The paper's four panels and one for bnrecon: error against size."""
    figure, grid = new_figure(2, 3, (PAGE, 4.6))
    *panels, legend = grid.flat
    for axes, (solver, title) in zip(panels, PANELS, strict=True):
        _draw_panel(axes, rows, solver)
        axes.set_title(title)
        axes.set_xlabel("channels c0 = c2")
        axes.set_ylabel("log10 rmse" if solver else "log10 condition number")
        if solver:
            axes.sharey(panels[0])
    panels[0].set_yticks(range(-18, 1, 3))
    for excess, style in LINES.items():
        panels[0].plot([], [], style, color="black", label=f"{excess} excess features")
    legend.legend(*panels[0].get_legend_handles_labels(), loc="center")
    legend.set_axis_off()
    return figure


def _draw_panel(axes: Axes, rows: pd.DataFrame, solver: str | None) -> None:
    """Errors of a solver, or condition numbers, which are the same for all solvers."""
    part = rows[rows["solver"] == (solver or "auto")]
    values = part["rmse" if solver else "condition_number"].clip(lower=SMALLEST)
    part = part.assign(value=np.log10(values)).dropna(subset="value")
    for (label, excess), group in part.groupby(["features", "excess"], sort=False):
        line = intervals_by(group, "channels", "value")
        if solver is None:  # as in the paper: no point where it cannot be identified
            line["mean"] = line["mean"].where(line["mean"] <= np.log10(IDENTIFIED))
        axes.errorbar(
            line.index,
            line["mean"],
            line["half_width"],
            color=COLOURS[label],
            linestyle=LINES[excess],
            label=label if excess == 0 else None,
        )


PART = Experiment(
    where="Figure 2",
    title="Reconstruction error of ill-conditioned feature matrices, by solver",
    caption=(
        "The table has the root mean squared error of M γ over the target's root mean square, "
        "computed in float64: the geometric mean over seeds, for the largest layer. "
        "Target and features have the same distribution. "
        "A target of ID cond is normal, one of Ortho cond orthogonal. "
        "The figure has the error itself, as in the paper, with 95% Student-t intervals of its "
        "logarithm over seeds; an error of 0 is drawn at -18. "
        "An orthogonal target has smaller entries, of about 1/sqrt(c0), and a smaller error for "
        "this reason alone. "
        "The paper's solvers run in float32, as in the paper; bnrecon is solver=auto."
    ),
    tasks=tasks,
    summary=summarize,
    draw=draw_figure,
)
