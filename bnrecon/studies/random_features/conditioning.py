"""Figure 2 of Random features for normalization layers: what ill conditioning costs the papers' solvers, and ours."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import torch

from bnrecon.construction.two_layer import linear_system
from bnrecon.features.drawing import draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import canvas
from bnrecon.reproduction.experiments import Pieces
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.solvers import SolverOptions, solve
from bnrecon.studies.random_features.feature_matrices import FEATURES, target_weight

__all__ = ["SOLVERS", "condition_number", "draw_errors", "errors", "pieces", "summary"]


CPU = torch.device("cpu")


SIDES = {"smoke": (5,), "laptop": (10, 20, 30, 40, 50), "paper": (10, 20, 30, 40, 50)}


SEEDS = {"smoke": 2, "laptop": 10, "paper": 10}


STYLES = {0: "-", 10: "--", 100: ":"}  # excess features, as the paper draws them


# Panels (a), (c) and (d) of the figure, and bnrecon's own choice.
SOLVERS = {
    "lbfgs": "LBFGS",
    "svd_lbfgs": "SVD, LBFGS",
    "svd_lu_lbfgs": "SVD, solve, LBFGS",
    "auto": "bnrecon",
}


IDENTIFIED = 1e7  # condition numbers beyond are lost in float32, which the papers compute in


def pieces(scale: str, words: object = ()) -> Pieces:
    """A piece for each size, excess and distribution."""
    return {
        f"{side}, {excess}, {label}": lambda side=side, excess=excess, label=label: errors(
            side, excess, label, SEEDS[scale]
        )
        for side in SIDES[scale]
        for excess in STYLES
        for label, name in FEATURES.items()
        if excess == 0
        or name not in ("id_cond", "ortho_cond")  # these have n features, and no more
    }


def errors(side: int, excess: int, label: str, seeds: int) -> pd.DataFrame:
    """One line a seed and solver: rmse of M γ against a target of the same distribution, in float64."""
    name, lines = FEATURES[label], []
    for seed in range(seeds):
        shape = LayerShape(side, side)
        matrix = feature_operator(
            draw(name, shape, shape.equations + excess, seed, 0), torch.float64, CPU
        )
        target = target_weight(name, side, side, seed)
        system = linear_system(matrix, target, orthogonal=name in ("id_cond", "ortho_cond"))
        line = {
            "features": label,
            "c0 = c2": side,
            "excess": excess,
            "seed": seed,
            "condition": condition_number(matrix.dense()),
        }
        for solver in SOLVERS:
            lines.append(line | {"solver": solver} | _solved(solver, system, target))
    return pd.DataFrame(lines)


def condition_number(matrix: torch.Tensor) -> float:
    """κ(M) from the eigenvalues of M Mᵀ, three times faster than the singular values, which follow where the square loses digits."""
    squares = torch.linalg.eigvalsh(matrix @ matrix.T)
    if squares[0] > 1e-12 * squares[-1]:
        return float((squares[-1] / squares[0]).sqrt())
    values = torch.linalg.svdvals(matrix)
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def _solved(solver: str, system, target: torch.Tensor) -> dict:
    try:
        found = solve(solver, system, SolverOptions())
    except (UserError, RunError) as error:
        return {
            "rmse": float("nan"),
            "relative rmse": float("nan"),
            "seconds": float("nan"),
            "why not": str(error).partition(":")[0],
        }
    missed = (system.matrix.matvec(found.scale) - target.reshape(-1)).square().mean().sqrt()
    return {
        "rmse": float(missed),
        "relative rmse": float(missed / target.square().mean().sqrt()),
        "seconds": found.report.seconds,
        "why not": "",
    }


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a distribution and excess at the largest size: geometric mean of the relative rmse over seeds, for each solver."""
    side = frame["c0 = c2"].max()
    lines = []
    for (label, excess), group in frame[frame["c0 = c2"] == side].groupby(
        ["features", "excess"], sort=False
    ):
        line = {"features": label, "c0 = c2": side, "excess": excess}
        condition = float(np.exp(np.log(group["condition"]).mean()))
        line["condition number"] = f"{condition:.3g}" + (
            " (not identifiable in float32)" if condition > IDENTIFIED else ""
        )
        for solver, name in SOLVERS.items():
            values = group.loc[group["solver"] == solver, "relative rmse"].dropna()
            mean = (
                f"{np.exp(np.log(values.clip(lower=1e-18)).mean()):.1e}"
                if len(values)
                else "does not apply"
            )
            line[name] = "0" if (values == 0).all() and len(values) else mean
        lines.append(line | {"seeds": group["seed"].nunique()})
    return pd.DataFrame(lines)


def draw_errors(frame: pd.DataFrame, file: io.BytesIO, kind: str) -> None:
    """The paper's four panels and one for bnrecon: log10 rmse against size, bars are standard errors over seeds."""
    with canvas(file, kind, 1, len(SOLVERS) + 1, figsize=(17, 3.8)) as (figure, grid):
        colours = dict(
            zip(
                FEATURES,
                ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860"),
                strict=True,
            )
        )
        panels = [
            ("lbfgs", "(a) LBFGS"),
            (None, "(b) condition number"),
            ("svd_lbfgs", "(c) SVD, LBFGS"),
            ("svd_lu_lbfgs", "(d) SVD, solve, LBFGS"),
            ("auto", "bnrecon"),
        ]
        for axes, (solver, title) in zip(grid, panels, strict=True):
            part = frame[frame["solver"] == (solver or "auto")]
            for (label, excess), group in part.groupby(["features", "excess"], sort=False):
                values = np.log10(
                    group["condition" if solver is None else "rmse"].clip(lower=1e-18)
                )
                by_size = values.groupby(group["c0 = c2"])
                mean, error = by_size.mean(), by_size.sem().fillna(0)
                if solver is None:
                    mean = mean.where(
                        mean <= np.log10(IDENTIFIED)
                    )  # as the paper: not shown where it cannot be identified
                axes.errorbar(
                    mean.index,
                    mean,
                    error,
                    color=colours[label],
                    linestyle=STYLES[excess],
                    label=label if excess == 0 else None,
                )
            axes.set_title(title, fontsize=10)
            axes.set_xlabel("c0 = c2")
            if solver and axes is not grid[0]:
                axes.sharey(grid[0])
        for excess, style in STYLES.items():
            grid[0].plot([], [], style, color="black", label=f"{excess} excess features")
        grid[0].set_ylabel("log10 rmse (0 is drawn at -18)")
        grid[1].set_ylabel("log10 condition number")
        grid[-1].legend(*grid[0].get_legend_handles_labels(), fontsize=7)
