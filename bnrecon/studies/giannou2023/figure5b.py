"""Figure 5 (b): 5% of the frozen weights are nonzero."""

from __future__ import annotations

import pandas as pd

from bnrecon.reporting.wording import span
from bnrecon.reproduction.parts import Decision, Decisions
from bnrecon.studies.giannou2023 import comparison


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide Appendix E's claims about Figure 5b."""
    left, right = comparison.split_panels(rows)
    if left["side"].nunique() < 2 or right["width"].nunique() < 2:
        return []  # the claims compare widths
    return [no_small_loss(rows), sgd_much_better(left), sgd_at_small_widths(left, right)]


def no_small_loss(rows: pd.DataFrame) -> Decision:
    """Decide by each method's least median loss over the settings."""
    by_setting = rows.groupby(["side", "width"])
    settings = [group.drop_duplicates(["method", "run"]) for _, group in by_setting]
    least = {
        method: min(comparison.median_share(group, method) for group in settings)
        for method in ("baseline", "teacher", "student")
    }
    numbers = {"settings": len(settings), "of": comparison.split_panels(rows)[1]["side"].iloc[0]}
    numbers |= {"rates": comparison.largest_rates(rows), "size": comparison.size_of(rows)}
    return "no small loss", min(least.values()) > 0.01, least | numbers


def sgd_much_better(left: pd.DataFrame) -> Decision:
    """Decide by the better construction's loss over SGD's."""
    errors = comparison.paired_errors(left, "side")
    factors = errors[["teacher", "student"]].min(axis=1) / errors["baseline"]
    medians = factors.groupby(level="side").median()
    numbers = {"factors": span(medians, ".2g"), "pairs": len(factors)}
    return "SGD", medians.min() >= 2, numbers | {"pairs_better": int((factors > 1).sum())}


def sgd_at_small_widths(left: pd.DataFrame, right: pd.DataFrame) -> Decision:
    """Decide by the smallest d in Figure 5b's left panel; ties are not defeats."""
    errors = comparison.paired_errors(left, "side")
    constructions = errors[["teacher", "student"]].min(axis=1)
    better, ties = errors["baseline"] < constructions, errors["baseline"] == constructions
    narrowest = errors.index.get_level_values("side").min()
    wins, draws, runs = better[narrowest].sum(), ties[narrowest].sum(), len(better[narrowest])
    wider = set(comparison.where_better(right, "width", "baseline", "student"))
    wider &= set(comparison.where_better(right, "width", "baseline", "teacher"))
    numbers = {
        "least": int(narrowest),
        "better": f"{wins} of {runs}",
        "ties": draws,
        "others": f"{better.sum() - wins} of {len(better) - runs}",
        "side": int(right["side"].iloc[0]),
        "wider": len(wider),
        "widths": right["width"].nunique(),
        "narrowest": right["width"].min(),
        "widest": right["width"].max(),
    }
    return "small width", bool(wins + draws == runs and 2 * wins > runs), numbers


PART = comparison.sparse_part(__file__, 0.05, decide)
