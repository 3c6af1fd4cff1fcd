"""Figure 2's systems, each solved by every solver: the errors, and the condition number."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import torch

from bnrecon.construction.two_layer import linear_system
from bnrecon.features.drawing import draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.shapes import LayerShape
from bnrecon.operators.system import System
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.solvers import SolverSpec, solve
from bnrecon.studies.random_features.feature_matrices import FEATURES, ORTHOGONAL, target_weight

CPU = torch.device("cpu")
# Values of column ``solver``. The paper states no iteration limit: 2,000 is bnrecon's choice, and
# with 50,000, LBFGS ends by itself when its line search finds nothing better in float32.
SETTINGS = {
    "lbfgs": SolverSpec("lbfgs", max_iterations=2_000),
    "lbfgs_long": SolverSpec("lbfgs", max_iterations=50_000),
    "svd_lbfgs": SolverSpec("svd_lbfgs", max_iterations=2_000),
    "svd_lu_lbfgs": SolverSpec("svd_lu_lbfgs", max_iterations=2_000),
    "auto": SolverSpec("auto"),
}
LONG = "lbfgs_long"


def measure_errors(features: str, channels: int, excess: int, seeds: int) -> pd.DataFrame:
    """Solve M γ = vec(W) with every solver; the errors are computed in float64.

    One row per seed and solver. Features and target have the same distribution, by the paper's
    name; c0 = c2 = ``channels`` and c1 = n + ``excess``.
    """
    name, rows = FEATURES[features], []
    shape = LayerShape(channels, channels)
    for seed in range(seeds):
        pair = draw(name, shape, shape.equations + excess, seed, 0)
        matrix = feature_operator(pair, torch.float64, CPU)
        target = scaled_target(name, channels, seed)
        system = linear_system(matrix, target, orthogonal=name in ORTHOGONAL)
        row = {"features": features, "channels": channels, "excess": excess, "seed": seed}
        row |= {"condition_number": condition_number(matrix.dense())}
        solved = {solver: _solve(solver, system, target) for solver in SETTINGS if solver != LONG}
        # If LBFGS ends below the smaller limit, it does below the larger.
        solved[LONG] = solved["lbfgs"] | {"limit": SETTINGS[LONG].max_iterations}
        if solved["lbfgs"]["at_limit"]:
            solved[LONG] = _solve(LONG, system, target)
        rows += [row | {"solver": solver} | solved[solver] for solver in SETTINGS]
    return pd.DataFrame(rows)


def scaled_target(name: str, channels: int, seed: int) -> torch.Tensor:
    """Draw a target (c0, c0) whose root mean square is sqrt(2 / c0), that of He normal weights.

    All distributions have one scale: as drawn, an orthogonal matrix has entries of 1/sqrt(c0), a
    sign matrix of 1, and errors grow in proportion. The entries are float32 numbers, as the
    paper's: rounding a target to float32 is not an error of a solver.
    """
    target = target_weight(name, channels, channels, seed)
    scale = math.sqrt(2 / channels) / float(target.square().mean().sqrt())
    return (target * scale).float().double()


def condition_number(matrix: torch.Tensor) -> float:
    """κ(M) of a matrix (n, c1) with c1 >= n.

    Uses the eigenvalues of M Mᵀ, three times faster than singular values, which are computed only
    if the square has lost too many digits.
    """
    squares = torch.linalg.eigvalsh(matrix @ matrix.T)
    if squares[0] > 1e-12 * squares[-1]:
        return float((squares[-1] / squares[0]).sqrt())
    values = torch.linalg.svdvals(matrix)
    return float(values[0] / values[-1]) if values[-1] > 0 else float("inf")


def _solve(solver: str, system: System, target: torch.Tensor) -> dict[str, Any]:
    setting = SETTINGS[solver]
    limit = setting.max_iterations or float("nan")
    try:
        solution = solve(system, setting)
    except (UserError, RunError) as error:
        missing = dict.fromkeys(("rmse", "relative_rmse", "iterations", "seconds"), float("nan"))
        reason = str(error).partition(":")[0]
        return missing | {"limit": limit, "at_limit": False, "used": "", "failure": reason}
    residual, report = system.matrix.matvec(solution.scale) - target.reshape(-1), solution.report
    rmse = residual.square().mean().sqrt()
    row = {"rmse": float(rmse), "relative_rmse": float(rmse / target.square().mean().sqrt())}
    row |= {"iterations": report.iterations, "seconds": report.seconds, "limit": limit}
    return row | {"at_limit": report.at_limit, "used": report.solver, "failure": ""}
