"""Figure 5 (b): 5% of the frozen weights are not zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from bnrecon.reproduction.texts import Decisions
from bnrecon.studies.giannou2023.comparison import (
    median_share,
    paired_errors,
    sparse_part,
    split_panels,
    where_better,
)

Decision = tuple[bool, Mapping[str, Any]]  # of one claim, and the numbers it names


def decide(rows: pd.DataFrame) -> Decisions:
    """What Appendix E says about Figure 5b."""
    left, right = split_panels(rows)
    decisions = {"no small loss": no_small_loss(rows)}
    if len(left):
        decisions["SGD"] = sgd_much_better(left)
        decisions["small width"] = sgd_at_small_widths(left, right)
    verdicts = {name: verdict for name, (verdict, _) in decisions.items()}
    return verdicts, {k: v for _, numbers in decisions.values() for k, v in numbers.items()}


def no_small_loss(rows: pd.DataFrame) -> Decision:
    """By each method's least median loss over the settings."""
    by_setting = rows.groupby(["side", "width"])
    settings = [group.drop_duplicates(["method", "run"]) for _, group in by_setting]
    least = {
        method: min(median_share(group, method) for group in settings)
        for method in ("baseline", "teacher", "student")
    }
    return min(least.values()) > 0.05, least | {"settings": len(settings)}


def sgd_much_better(left: pd.DataFrame) -> Decision:
    """By the better construction's loss over SGD's."""
    errors = paired_errors(left, "side")
    factors = errors[["teacher", "student"]].min(axis=1) / errors["baseline"]
    medians = factors.groupby(level="side").median()
    listed = ", ".join(f"{factor:.2g} at d = {side}" for side, factor in medians.items())
    numbers = {"factors": listed, "pairs_better": int((factors > 1).sum()), "pairs": len(factors)}
    return medians.min() >= 2, numbers


def sgd_at_small_widths(left: pd.DataFrame, right: pd.DataFrame) -> Decision:
    """Of the left panel of Figure 5b: the smallest d decides, where ties are no defeats."""
    errors = paired_errors(left, "side")
    constructions = errors[["teacher", "student"]].min(axis=1)
    by_side = {
        "better": errors["baseline"] < constructions,
        "tie": errors["baseline"] == constructions,
    }
    counts = pd.DataFrame(by_side).groupby(level="side").agg(["sum", "size"])
    better, ties, runs = counts["better"]["sum"], counts["tie"]["sum"], counts["tie"]["size"]
    least = counts.index.min()
    beats = better[least] + ties[least] == runs[least] and 2 * better[least] > runs[least]
    wider = set(where_better(right, "width", "baseline", "student"))
    wider &= set(where_better(right, "width", "baseline", "teacher"))
    numbers = {
        "better": ", ".join(f"{better[d]} of {runs[d]} at d = {d:.0f}" for d in counts.index),
        "ties": ties.sum(),
        "side": int(right["side"].iloc[0]),
        "wider": len(wider),
        "widths": right["width"].nunique(),
        "narrowest": right["width"].min(),
        "widest": right["width"].max(),
    }
    return beats, numbers


PART = sparse_part(__file__, 0.05, decide)
