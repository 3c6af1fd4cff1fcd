"""What Burkholz 2024, Sect. 3, says about its solver's accuracy, decided by measured errors."""

from __future__ import annotations

import pandas as pd

from bnrecon.reproduction.experiment import Claim
from bnrecon.studies.burkholz2024.accuracy_steps import LBFGS, LU
from bnrecon.studies.burkholz2024.log_means import GeometricMean, exponent, geometric_mean

__all__ = ["claims"]

PAPERS_SIZES = (36_864, 90_000)  # equations of a layer of the targets of width 64 and 100
SUBSTANTIAL = 2.0  # a growth of the error by more than this factor


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Does LU get worse with size, does LBFGS help, and does the rest grow?"""
    return [_accumulation(rows), _reduction(rows), _amplification(rows)]


def _accumulation(rows: pd.DataFrame) -> Claim:
    own = rows[rows["step"] == LU]
    statement = "torch.linalg.solve suffers from accumulating approximation errors for larger M."
    if own["n"].nunique() < 2:
        return Claim("Sect. 3.1", statement, "open", "one size is no growth.")
    slope = exponent(list(own["n"]), list(own["error"]))
    half = slope.half_width
    verdict = "open"
    if half is not None and abs(slope.mean) > half:
        verdict = "confirmed" if slope.mean > 0 else "not confirmed"
    between = "" if half is None else f" ({slope.mean - half:.2f} to {slope.mean + half:.2f})"
    return Claim(
        "Sect. 3.1",
        statement,
        verdict,
        f"the error of the float32 LU grows as n^{slope.mean:.2f}{between}, the slope of the "
        f"logarithms over {slope.n} systems of {_sizes(own)} equations, with its 95% interval.",
    )


def _reduction(rows: pd.DataFrame) -> Claim:
    """Paired: both errors are of the same system."""
    errors = rows.pivot_table(index=["n", "seed"], columns="step", values="error")
    factors = {
        n: geometric_mean(list(group[LU] / group[LBFGS])) for n, group in errors.groupby(level="n")
    }
    found = list(factors.values())
    if any(factor.n > 1 and factor.high < 1 for factor in found):
        verdict = "not confirmed"
    else:
        verdict = "confirmed" if all(f.n > 1 and f.low > 1 for f in found) else "open"
    listed = "; ".join(f"{factor:.3g} at n = {n:,}" for n, factor in factors.items())
    return Claim(
        "Sect. 3.1",
        "LBFGS reduces the error that torch.linalg.solve leaves.",
        verdict,
        f"by a factor of {listed} (geometric mean over systems, with the 95% interval of the "
        f"logarithms; {len(found)} comparisons, all of which have to hold).",
    )


def _amplification(rows: pd.DataFrame) -> Claim:
    own = rows[rows["step"] == LBFGS]
    statement = "The error is not substantially amplified for larger targets."
    small, large = PAPERS_SIZES
    about = (
        f"Substantial is a factor of {SUBSTANTIAL:g} from n = {small:,} to n = {large:,}, the "
        "paper's targets of width 64 and 100, to which measured growth is extrapolated"
    )
    if own["n"].nunique() < 2:
        return Claim("Sect. 3.2", statement, "open", f"one size is no growth. {about}.")
    slope = exponent(list(own["n"]), list(own["assembled_error"]))
    half = slope.half_width or 0.0
    ratio = large / small
    ends = (ratio ** (slope.mean - half), ratio ** (slope.mean + half))
    growth = GeometricMean(ratio**slope.mean, *ends, slope.n)
    verdict = "open"
    if slope.half_width is not None and growth.high < SUBSTANTIAL:
        verdict = "confirmed"
    elif slope.half_width is not None and growth.low > SUBSTANTIAL:
        verdict = "not confirmed"
    return Claim(
        "Sect. 3.2",
        statement,
        verdict,
        f"the error of the paper's solution in the float32 network grows by {growth:.2f}, from "
        f"{slope.n} systems of {_sizes(own)} equations. {about}.",
    )


def _sizes(rows: pd.DataFrame) -> str:
    return ", ".join(f"{n:,}" for n in sorted(rows["n"].unique()))
