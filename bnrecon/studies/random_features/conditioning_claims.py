"""What Figure 2 says about the paper's claims of Sect. 2.1 and 5 on conditioning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.experiment import Claim
from bnrecon.reproduction.intervals import count_signs, geometric_mean, paired_difference
from bnrecon.studies.random_features.averages import trend
from bnrecon.studies.random_features.feature_matrices import ANY_WIDTH

__all__ = ["claims"]

PAIRED = "paired by seed, 95% intervals of the logarithm"
SIZES = 3  # that a trend takes
TOO_FEW = f"Not decided: no distribution has {SIZES} sizes computed."


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
        _preconditioned_by_size(standard),
        _better_features(rows),
    ]
    return [claim for claim in found if claim is not None]


def _verdict(intervals: Sequence[Interval]) -> str:
    """Whether a side is smaller: in all comparisons, in none but larger in some, or undecided."""
    below, _ = count_signs(intervals)
    if below == len(intervals):
        return "confirmed"
    above = count_signs(one.widened(len(intervals)) for one in intervals)[1]
    return "contradicted" if above and not below else "open"


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
        f"{geometric_mean(values).mean:.2g} ({key})"
        for key, values in rows[rows[column] > 0].groupby(by, sort=True)[column]
    )


def _grows_with_size(rows: pd.DataFrame, column: str) -> Claim | None:
    """At c1 = n: the trend of a logarithm over that of the size, for each distribution."""
    square = rows[rows["excess"] == 0]
    if square.empty:
        return None
    # The condition number is a draw's, which has a row for each solver.
    draws = square.drop_duplicates(["features", "channels", "seed"])
    found = _slopes(draws if column == "log_condition" else square, column)
    _, above = count_signs(found)
    what, values = {
        "log_condition": ("the condition number further increases", "condition_number"),
        "log_error": ("target reconstruction is more erroneous", "relative_rmse"),
    }[column]
    solver = "" if column == "log_condition" else " (LBFGS with at most 50,000 iterations)"
    return Claim(
        "Sect. 2.1, Figure 2",
        f"'On average', for larger systems {what}{solver}.",
        _verdict([-one for one in found]) if found else "open",
        TOO_FEW
        if not found
        else f"With c1 = n, geometric means over distributions and seeds by c0 = c2: "
        f"{_means(square, values, 'channels')}. It grows as the power {_spell(found)} of c0; in "
        f"{above} of {len(found)} distributions above 0 (95% intervals of the slope over all sizes "
        "and seeds).",
    )


def _slopes(rows: pd.DataFrame, column: str) -> list[Interval]:
    """The power of c0 that a value grows as, by distribution."""
    known = rows.dropna(subset=column)
    return [
        trend(list(np.log10(group["channels"])), list(group[column]))
        for _, group in known.groupby("features")
        if group["channels"].nunique() >= SIZES
    ]


def _spell(intervals: Sequence[Interval]) -> str:
    """From the smallest mean to the largest."""
    means = [one.mean for one in intervals]
    return f"{min(means):.1f} to {max(means):.1f}" if means else "not computed yet"


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
        for solver, title in (
            ("lbfgs", "at most 2,000 iterations"),
            ("lbfgs_long", "at most 50,000"),
        )
    )
    return Claim(
        "Sect. 2.1, Figure 2(a)",
        "'More [...] features [...] make the problem algorithmically better solveable.'",
        _verdict(found),
        f"Relative errors of LBFGS by excess features at c0 = c2 = {largest['channels'].iloc[0]}: "
        f"{spelled}. {many['excess'].iloc[0]} excess features have the smaller error in {below} "
        f"of {len(found)} comparisons (distributions x limits, {PAIRED}).",
    )


def _preconditioning_helps(rows: pd.DataFrame) -> Claim | None:
    """At c1 = n and with one limit of iterations, 2,000, with and without."""
    largest = _largest(rows)
    square = largest[largest["excess"] == 0]
    found = _against(square, "lbfgs")
    if not found:
        return None
    below, above = count_signs(found)
    longer = _against(largest, "lbfgs") + _against(largest, "lbfgs_long")
    spelled = _means(square[square["solver"] != "auto"], "relative_rmse", "solver")
    return Claim(
        "Figure 2(c, d)",
        "Preconditioning strategies 'reduce the approximation error'.",
        _verdict(found),
        f"At c0 = c2 = {largest['channels'].iloc[0]}, c1 = n, and at most 2,000 iterations for "
        f"both, it has the smaller error in {below} and the larger in {above} of {len(found)} "
        f"comparisons (with and without solve, distributions, {PAIRED}); also with excess features "
        f"and against LBFGS with 50,000 in {count_signs(longer)[0]} of {len(longer)}. Relative "
        f"errors with c1 = n: {spelled}.",
    )


def _against(rows: pd.DataFrame, plain: str) -> list[Interval]:
    """The error after an SVD less that of LBFGS alone, by distribution and excess."""
    by_solver = dict(list(rows.groupby("solver")))
    return [
        one
        for solver in ("svd_lbfgs", "svd_lu_lbfgs")
        if solver in by_solver and plain in by_solver
        for one in _compare(
            by_solver[solver], by_solver[plain], ["features", "excess"], "log_error"
        )
    ]


def _preconditioned_by_size(rows: pd.DataFrame) -> Claim | None:
    """Whether the error that an SVD leaves grows with the size; its cost is not judged here."""
    solved = rows[(rows["excess"] == 0) & (rows["solver"] == "svd_lu_lbfgs")]
    if solved.empty:
        return None
    found = _slopes(solved, "log_error")
    others = _slopes(rows[(rows["excess"] == 0) & (rows["solver"] == "auto")], "log_error")
    _, above = count_signs(found)
    return Claim(
        "Beyond Figure 2(c, d): error against size",
        "The error that preconditioning leaves grows with the size. (The paper: such strategies "
        "'do not scale to realistic neural network sizes'.)",
        _verdict([-one for one in found]) if found else "open",
        TOO_FEW
        if not found
        else f"With c1 = n, SVD and solve, relative errors by c0 = c2: "
        f"{_means(solved, 'relative_rmse', 'channels')}. They grow as the power {_spell(found)} of "
        f"c0; in {above} of {len(found)} distributions above 0 (95% intervals of the slope). "
        f"Errors of a direct solve in float64 (solver=auto) grow as the power {_spell(others)}. "
        "The paper's own reason is the cost of the SVD of a matrix of n x n, n = c0 c2 (A.3). "
        "That 'their effect is limited' is not decided here: the paper gives no measure of it.",
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
    error = geometric_mean(plain.loc[plain["relative_rmse"] > 0, "relative_rmse"]).mean
    return Claim(
        "Sect. 5",
        "Preconditioning 'is not as effective as using our well conditioned features ID cond and "
        "Ortho cond'.",
        _verdict(found),
        f"With c1 = n, c0 = c2 = {square['channels'].iloc[0]}: Ortho cond features and LBFGS alone "
        f"have a relative error of {error:.1e}, preconditioned ones "
        f"{_means(preconditioned, 'relative_rmse', 'features')}: smaller in {below} of "
        f"{len(found)} comparisons ({PAIRED}).{_zeros(square)}",
    )


def _zeros(rows: pd.DataFrame) -> str:
    """Of ID cond features with LBFGS alone."""
    errors = rows.loc[(rows["features"] == "ID cond") & (rows["solver"] == "lbfgs"), "rmse"]
    if errors.empty:
        return ""
    found = f"{(errors == 0).sum()} of {len(errors)} seeds"
    return f" With ID cond features LBFGS has an error of 0 in {found}."
