"""What Figure 2 says about the paper's claims of Sect. 2.1 and 5 on conditioning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.experiment import Claim
from bnrecon.studies.random_features.averages import geometric_mean
from bnrecon.studies.random_features.comparisons import count_signs, paired_difference
from bnrecon.studies.random_features.feature_matrices import ANY_WIDTH

__all__ = ["claims"]

PAIRED = "paired by seed, 95% intervals of the logarithm"


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Those whose tasks are there: size, excess features, preconditioning, better features."""
    rows = rows.assign(
        log_condition=np.log10(rows["condition_number"]),
        log_error=np.log10(rows["relative_rmse"].where(rows["relative_rmse"] > 0)),
    )
    standard = rows[rows["features"].isin(ANY_WIDTH)]
    found = [
        _grows_with_size(standard, "log_condition"),
        _grows_with_size(standard[standard["solver"] == "lbfgs_long"], "log_error"),
        _excess_helps(standard),
        _preconditioning_helps(standard),
        _better_features(rows),
    ]
    return [claim for claim in found if claim is not None]


def _verdict(intervals: Sequence[Interval]) -> str:
    """Whether the left side is smaller: in all comparisons, not in some, or undecided."""
    below, above = count_signs(intervals)
    if above:
        return "not confirmed"
    return "confirmed" if below == len(intervals) else "open"


def _compare(left: pd.DataFrame, right: pd.DataFrame, by: list[str], column: str) -> list[Interval]:
    """Left less right, for every group that both have."""
    others = dict(list(right.groupby(by)))
    found = [
        paired_difference(group, others[key], column)
        for key, group in left.groupby(by)
        if key in others
    ]
    return [one for one in found if one is not None]


def _largest(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["channels"] == rows["channels"].max()]


def _means(rows: pd.DataFrame, column: str, by: str) -> str:
    """Geometric means of what is above 0."""
    return ", ".join(
        f"{geometric_mean(values[values > 0]):.2g} ({key})"
        for key, values in rows.groupby(by, sort=True)[column]
    )


def _grows_with_size(rows: pd.DataFrame, column: str) -> Claim | None:
    """At c1 = n: the smallest size against the largest."""
    square = rows[rows["excess"] == 0]
    smallest = square[square["channels"] == square["channels"].min()]
    found = _compare(smallest, _largest(square), ["features"], column)
    if not found or square["channels"].nunique() == 1:
        return None
    below, _ = count_signs(found)
    what, values = {
        "log_condition": ("the condition number further increases", "condition_number"),
        "log_error": ("reconstruction is more erroneous (LBFGS without a limit)", "relative_rmse"),
    }[column]
    return Claim(
        "Sect. 2.1, Figure 2",
        f"For larger systems {what}.",
        _verdict(found),
        f"With c1 = n, geometric means over distributions and seeds by c0 = c2: "
        f"{_means(square, values, 'channels')}. The largest size has more than the smallest in "
        f"{below} of {len(found)} comparisons (distributions, {PAIRED}).",
    )


def _excess_helps(rows: pd.DataFrame) -> Claim | None:
    largest = _largest(rows[rows["solver"].isin(["lbfgs", "lbfgs_long"])])
    many = largest[largest["excess"] == largest["excess"].max()]
    none = largest[largest["excess"] == 0]
    found = _compare(many, none, ["features", "solver"], "log_error")
    if not found or many["excess"].iloc[0] == 0:
        return None
    below, _ = count_signs(found)
    spelled = "; ".join(
        f"{title} {_means(largest[largest['solver'] == solver], 'relative_rmse', 'excess')}"
        for solver, title in (("lbfgs", "at most 2,000 iterations"), ("lbfgs_long", "no limit"))
    )
    return Claim(
        "Sect. 2.1, Figure 2(a)",
        "More features make the problem algorithmically better solvable.",
        _verdict(found),
        f"Relative errors of LBFGS by excess features at c0 = c2 = {largest['channels'].iloc[0]}: "
        f"{spelled}. {many['excess'].iloc[0]} excess features have the smaller error in {below} "
        f"of {len(found)} comparisons (distributions x limits, {PAIRED}).",
    )


def _preconditioning_helps(rows: pd.DataFrame) -> Claim | None:
    largest = _largest(rows)
    by_solver = dict(list(largest.groupby("solver")))
    found = [
        one
        for solver in ("svd_lbfgs", "svd_lu_lbfgs")
        for plain in ("lbfgs", "lbfgs_long")
        for one in _compare(
            by_solver[solver], by_solver[plain], ["features", "excess"], "log_error"
        )
    ]
    if not found:
        return None
    below, above = count_signs(found)
    square = largest[(largest["excess"] == 0) & (largest["solver"] != "auto")]
    spelled = _means(square, "relative_rmse", "solver") if len(square) else "not computed"
    return Claim(
        "Figure 2(c, d)",
        "Preconditioning by an SVD reduces the approximation error.",
        _verdict(found),
        f"At c0 = c2 = {largest['channels'].iloc[0]} it has the smaller error in {below} and the "
        f"larger in {above} of {len(found)} comparisons (with and without solve, against LBFGS "
        f"with and without a limit, distributions x excess, {PAIRED}). Relative errors with c1 = "
        f"n: {spelled}.",
    )


def _better_features(rows: pd.DataFrame) -> Claim | None:
    """Ortho cond features with LBFGS alone against preconditioned standard ones."""
    square = _largest(rows[rows["excess"] == 0])
    plain = square[(square["features"] == "Ortho cond") & (square["solver"] == "lbfgs")]
    preconditioned = square[
        square["features"].isin(ANY_WIDTH) & (square["solver"] == "svd_lu_lbfgs")
    ]
    found = [
        one
        for _, group in preconditioned.groupby("features")
        for one in [paired_difference(plain, group, "log_error")]
        if one is not None
    ]
    if not found:
        return None
    below, _ = count_signs(found)
    return Claim(
        "Sect. 5",
        "Preconditioning is not as effective as well conditioned features, ID cond and Ortho cond.",
        _verdict(found),
        f"With c1 = n, c0 = c2 = {square['channels'].iloc[0]}: Ortho cond features and LBFGS alone "
        f"have a relative error of {geometric_mean(plain['relative_rmse']):.1e}, preconditioned "
        f"ones {_means(preconditioned, 'relative_rmse', 'features')}: smaller in {below} of "
        f"{len(found)} comparisons ({PAIRED}).{_zeros(square)}",
    )


def _zeros(rows: pd.DataFrame) -> str:
    """Of ID cond features with LBFGS alone."""
    errors = rows.loc[(rows["features"] == "ID cond") & (rows["solver"] == "lbfgs"), "rmse"]
    if errors.empty:
        return ""
    found = f"{(errors == 0).sum()} of {len(errors)} seeds"
    return f" With ID cond features LBFGS has an error of 0 in {found}."
