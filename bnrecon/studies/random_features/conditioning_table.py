"""Figure 2 as a table: errors and iterations at the largest size."""

from __future__ import annotations

import pandas as pd

from bnrecon.reproduction.intervals import geometric_mean
from bnrecon.studies.random_features.conditioning_settings import IDENTIFIED, SETTINGS, TITLES

__all__ = ["caption", "summarize"]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """The largest size: one row for each distribution and excess, one column for each solver."""
    channels = rows["channels"].max()
    lines = []
    largest = rows[rows["channels"] == channels]
    for (label, excess), group in largest.groupby(["features", "excess"], sort=False):
        condition = geometric_mean(group["condition_number"]).mean
        note = " (not identifiable in float32)" if condition > IDENTIFIED else ""
        line = {
            "features": label,
            "channels c0 = c2": channels,
            "excess c1 - n": excess,
            "condition number": f"{condition:.3g}{note}",
        }
        for solver, title in TITLES.items():
            part = group[(group["solver"] == solver) & group["relative_rmse"].notna()]
            line[title] = _cell(part, solver) if len(part) else "not applicable"
        lines.append(line | {"seeds": group["seed"].nunique()})
    return pd.DataFrame(lines)


def _cell(rows: pd.DataFrame, solver: str) -> str:
    """The error, and in brackets iterations, or which solver bnrecon took."""
    error = _mean_error(rows["relative_rmse"])
    if solver == "auto":
        return f"{error} ({', '.join(sorted(set(rows['used'])))})"
    stopped = int(rows["at_limit"].sum())
    note = f"; {stopped} of {len(rows)} at the limit" if stopped else ""
    return f"{error} ({rows['iterations'].mean():,.0f}{note})"


def _mean_error(errors: pd.Series) -> str:
    """The geometric mean of errors above 0; how many are 0 is said, and not averaged."""
    zeros = int((errors == 0).sum())
    if zeros == len(errors):
        return "0"
    mean = f"{geometric_mean(errors[errors > 0]).mean:.1e}"
    return f"{mean}, {zeros} of {len(errors)}: 0" if zeros else mean


def caption(rows: pd.DataFrame) -> str:
    """Settings, units, and what the limit of iterations does."""
    return (
        "The table has the root mean squared error of M γ over the target's, computed in float64: "
        "the geometric mean over seeds, for the largest layer; in brackets mean iterations, and in "
        "how many seeds the limit stopped the solver. Target and features have the same "
        "distribution; a target of ID cond is normal, one of Ortho cond orthogonal. All targets "
        "are scaled to the root mean square of He normal weights, sqrt(2/c0), so that errors of "
        "different distributions can be compared. "
        "LBFGS starts from zero, with learning rate 1, a history of 100, strong Wolfe line search, "
        "tolerances of 1e-12 (gradient) and 1e-15 (change), in float32, PyTorch's default. The "
        f"paper states none of these settings. {_effect_of_the_limit(rows)}"
        "bnrecon is solver=auto, in float64; in brackets the solver that it took. The matrix-free "
        f"one stops at a relative residual of {SETTINGS['auto'].tolerance:.0e}: where bnrecon's "
        "error is larger with more features, this tolerance is the reason, not the conditioning. "
        "The figure has the error itself against the size, as in the paper: means of its logarithm "
        f"with 95% Student-t intervals over seeds, n = {rows['seed'].nunique()} (five at laptop "
        "scale, for time, ten at paper scale; fixed before). Errors of exactly 0 have no "
        "logarithm: they are open circles in a row of their own."
    )


def _effect_of_the_limit(rows: pd.DataFrame) -> str:
    """Between 2,000 and 50,000 iterations, where the first limit stopped LBFGS."""
    by_run = ["features", "channels", "excess", "seed"]
    short, long = (
        rows[rows["solver"] == solver].set_index(by_run) for solver in ("lbfgs", "lbfgs_long")
    )
    stopped = short.index[short["at_limit"]]
    if stopped.empty:
        return ""
    factors = short.loc[stopped, "relative_rmse"] / long.loc[stopped, "relative_rmse"]
    by_excess = ", ".join(
        f"{geometric_mean(part).mean:.1f} times smaller at {excess} excess features"
        for excess, part in factors.groupby(level="excess")
    )
    iterations = long.loc[stopped, "iterations"]
    return (
        f"The limit of 2,000 iterations stops {len(stopped)} of {len(short)} runs. With 50,000 "
        f"these end after {iterations.min():,.0f} to {iterations.max():,.0f} iterations, and the "
        f"error is {by_excess} (geometric means). "
    )
