"""Figure 5 (a): 20% of the frozen weights are nonzero."""

from __future__ import annotations

import pandas as pd

from bnrecon.construction.sparse_invertibility import predicted_density
from bnrecon.reproduction.parts import Decisions
from bnrecon.studies.giannou2023 import comparison


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide Appendix E's claims about Figure 5a, in shares of the labels' variance."""
    left, _ = comparison.split_panels(rows)
    sides = sorted(int(side) for side in left["side"].unique())
    if len(sides) < 2:
        return {}, {}  # the claim compares widths
    far, error, ratio = [], [], 1.0
    for side in (sides[0], sides[-1]):
        panel = left[left["side"] == side]
        errors = comparison.paired_errors(panel, "side").loc[side]
        variance = panel.groupby("run")["variance"].first()
        far.append(float(((errors["student"] - errors["dense"]).abs() / variance).median()))
        error.append(comparison.median_share(panel, "teacher"))
        ratio = float((errors["student"] / errors["dense"]).median())
    holds: bool | str = min(far[0], error[0]) > 0.1 and max(far[1], error[1]) < 0.01
    if not holds and sides[-1] < max(comparison.SIDES["paper"]):
        holds = "undecided"  # larger d are still to come
    last = left[(left["side"] == sides[-1]) & (left["method"] == "teacher")]["mse"]
    exact = int((last < comparison.NEGLIGIBLE_ERROR).sum())
    numbers = {"sides": (sides[0], sides[-1]), "far": far, "error": error, "ratio": ratio}
    numbers |= {"exact": f"{exact} of {len(last)}", "size": comparison.size_of(rows)}
    numbers["densities"] = [predicted_density(side, "theorem") for side in (sides[0], sides[-1])]
    verdicts = {"dimensions": holds, "theorem 3": "undecided"}
    return verdicts, numbers | {"rates": comparison.largest_rates(rows)}


PART = comparison.sparse_part(__file__, 0.2, decide)
