"""What Burkholz 2024, Sect. 3, says about its solver's accuracy, decided by measured errors."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from bnrecon.reproduction.experiment import Claim
from bnrecon.studies.burkholz2024.accuracy_steps import LBFGS, LU
from bnrecon.studies.burkholz2024.log_means import direction, exponents, geometric_mean, written

__all__ = ["claims"]

PAPERS_SIZES = (36_864, 90_000)  # equations of a layer of the targets of width 64 and 100
GROWTH = 2.0  # of the weight error between these two
SLOPES = "one slope of the logarithms a seed, 95% Student-t interval over seeds"


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Does LU get worse with size, does LBFGS help, and does the rest grow?"""
    return [_accumulation(rows), *_reductions(rows), _growth(rows)]


def _accumulation(rows: pd.DataFrame) -> Claim:
    own = rows[rows["step"] == LU]
    statement = "torch.linalg.solve suffers from accumulating approximation errors for larger M."
    slopes = exponents(own, "n", "error")
    if not slopes:
        return Claim("Sect. 3.1", statement, "open", "one size is no growth.")
    return Claim(
        "Sect. 3.1",
        statement,
        {1: "confirmed", 0: "open", -1: "not confirmed"}[direction(slopes)],
        f"the error of the float32 LU grows as n^p with p = {written(slopes)}, over "
        f"layers of {_sizes(own)} equations: {SLOPES}.",
    )


def _reductions(rows: pd.DataFrame) -> list[Claim]:
    """One claim a size. Paired: both errors are of the same system."""
    errors = rows.pivot_table(index=["n", "seed"], columns="step", values="error")
    factors = {n: group[LU] / group[LBFGS] for n, group in errors.groupby(level="n")}
    return [
        Claim(
            "Sect. 3.1",
            f"LBFGS reduces the error that torch.linalg.solve leaves (here at n = {n:,}).",
            {1: "confirmed", 0: "open", -1: "not confirmed"}[direction(list(np.log(found)))],
            f"by a factor of {geometric_mean(list(found)):.3g}, geometric mean over systems with "
            f"the 95% Student-t interval (systems: {len(found)}; sizes compared: "
            f"{len(factors)}).",
        )
        for n, found in factors.items()
    ]


def _growth(rows: pd.DataFrame) -> Claim:
    """Extrapolated, which cannot contradict what the paper says of measured accuracies."""
    small, large = PAPERS_SIZES
    statement = (
        f"The weight error grows by less than a factor of {GROWTH:g} from n = {small:,} to n = "
        f"{large:,}, the paper's targets of width 64 and 100 (the paper says of performance that "
        "the problem is not substantially amplified for larger targets: part width100)."
    )
    own = rows[rows["step"] == LBFGS]
    slopes = exponents(own, "n", "assembled_error")
    if not slopes:
        return Claim("Sect. 3.2", statement, "open", "one size is no growth.")
    growths = [(large / small) ** slope for slope in slopes]
    below = direction([math.log(growth / GROWTH) for growth in growths]) < 0
    return Claim(
        "Sect. 3.2",
        statement,
        "confirmed" if below else "open",
        "the error of the paper's solution in the float32 network grows by "
        f"{geometric_mean(growths):.2f}, extrapolated from {_sizes(own)} equations by the growth "
        f"with n (seeds: {len(slopes)}; {SLOPES}).",
    )


def _sizes(rows: pd.DataFrame) -> str:
    return ", ".join(f"{n:,}" for n in sorted(rows["n"].unique()))
