"""What Figure 4 (left, middle) says about the paper's claims of Sect. 4 on random targets."""

from __future__ import annotations

import pandas as pd

from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.experiment import Claim
from bnrecon.studies.random_features.comparisons import bounds, count_signs, paired_difference
from bnrecon.studies.random_features.feature_matrices import ANY_WIDTH
from bnrecon.studies.random_features.permutation_search import (
    NONE,
    best_error,
    equivalent_missing,
)

__all__ = ["DENSE", "claims"]

DENSE = ("He normal", "orthogonal", "Ortho cond")  # targets without zeros
PRINTED = (100, 300)  # the paper's hidden channels
STRONG = 0.1  # a difference of this part of the error is a strong association


def claims(rows: pd.DataFrame) -> list[Claim]:
    """What can be fitted, by which features, and whether a low rank helps."""
    rows = rows.assign(best=best_error(rows))
    return [
        _fitted(rows),
        _id_cond(rows),
        _alike(rows),
        *_low_rank(rows),
        *_called_low_rank(rows),
    ]


def _fitted(rows: pd.DataFrame) -> Claim:
    best = rows.groupby(["features", "target"])["best"]
    whole = [pair for pair, errors in best if (errors < NONE).any()]
    own = best.get_group(("ID cond", "ID cond"))
    return Claim(
        "Sect. 4, Figure 4",
        "Permutations hardly reduce the width requirement: only highly sparse targets can be "
        "reconstructed with fewer sparse ID cond features.",
        "confirmed" if whole == [("ID cond", "ID cond")] else "not confirmed" if whole else "open",
        f"The error is 0 in {(own < NONE).sum()} of {len(own)} draws of ID cond targets with ID "
        f"cond features, and in {_others_fitted(rows)} of all others. Targets without zeros are "
        f"permuted to the error of {_equivalents(rows)}.",
    )


def _equivalents(rows: pd.DataFrame) -> str:
    """As in "5 missing features instead of 60", for each width."""
    dense = rows[rows["target"].isin(DENSE)]
    n = _channels(rows) ** 2
    return " and ".join(
        f"{equivalent_missing(group['best'], _channels(rows)).mean():.1f} missing "
        f"features instead of {n - width}"
        for width, group in dense.groupby("c1")
    )


def _others_fitted(rows: pd.DataFrame) -> str:
    other = rows[(rows["features"] != "ID cond") | (rows["target"] != "ID cond")]
    return f"{(other['best'] < NONE).sum()} of {len(other)}"


def _channels(rows: pd.DataFrame) -> int:
    return int(rows["channels"].iloc[0])


def _id_cond(rows: pd.DataFrame) -> Claim:
    """ID cond against each other distribution, on targets without zeros, by search."""
    dense = rows[rows["target"].isin(DENSE)]
    greedy, exchanges = (_against_id_cond(dense, search) for search in ("greedy", "exchanges"))
    (below, above), count = count_signs(exchanges), len(exchanges)
    return Claim(
        "Sect. 4",
        "ID cond features seem less suitable than others to exploit low rankness of dense targets.",
        "confirmed" if above == count else "not confirmed" if below == count else "open",
        f"With exchanges for all, ID cond has the smaller error in {below} and the larger in "
        f"{above} of {count} comparisons (hidden channels x other features, paired by draw, 95% "
        "intervals); after the greedy pass in {} and {}. {}.".format(
            *count_signs(greedy), _errors_by_search(dense)
        ),
    )


def _against_id_cond(rows: pd.DataFrame, search: str) -> list[Interval]:
    """The error with ID cond features less that with each other's, by hidden channels."""
    found = [
        paired_difference(group[group["features"] == "ID cond"], other, search)
        for _, group in rows.groupby("hidden")
        for label, other in group.groupby("features")
        if label != "ID cond"
    ]
    return [one for one in found if one is not None]


def _errors_by_search(rows: pd.DataFrame) -> str:
    columns = ["greedy", "exchanges", "best"]
    means = rows.groupby(["hidden", "features"], sort=False)[columns].mean().map("{:.4f}".format)
    spelled = []
    for hidden in rows["hidden"].unique():
        own, other = means.loc[(hidden, "ID cond")], means.loc[(hidden, "He normal")]
        spelled.append(
            f"{hidden} hidden channels: ID cond {own['greedy']}, {own['exchanges']}, "
            f"{own['best']} (greedy, exchanges, best of all), He normal {other['greedy']}, "
            f"{other['exchanges']}"
        )
    return "; ".join(spelled)


def _alike(rows: pd.DataFrame) -> Claim:
    """The error of a target with features of its distribution, less that with the others'."""
    rows = rows[rows["features"] != "ID cond"]
    ends, changes = [], []
    for (_, label), group in rows.groupby(["hidden", "target"], sort=False):
        own = group["features"] == label
        one = paired_difference(group[own], group[~own], "best")
        if one is not None:
            scale = float(group["best"].mean())
            changes.append(100 * one.mean / scale)
            ends.append([end / scale for end in bounds(one)])
    strong = sum(high < -STRONG for _, high in ends)
    weak = sum(low > -STRONG for low, _ in ends)
    return Claim(
        "Sect. 4",
        "No strong positive associations between similar target and feature distributions, apart "
        "from sparsity.",
        "not confirmed" if strong else "confirmed" if weak == len(ends) else "open",
        "Features of the target's own distribution instead of others change its error by "
        f"{min(changes):.1f}% to {max(changes):.1f}%; 95% intervals of {weak} of {len(ends)} "
        f"comparisons exclude a gain of {100 * STRONG:.0f}% (hidden channels x distributions but "
        "ID cond, paired by draw).",
    )


def _low_rank(rows: pd.DataFrame) -> list[Claim]:
    """At one width: targets of low rank against those of full rank, by distribution of features.

    In features, n e²: a reduction is one of more than ``STRONG`` of the missing ones.
    """
    dense = rows[rows["target"].isin(DENSE)]
    dense = dense.assign(missing=equivalent_missing(dense["best"], _channels(rows)))
    is_low = dense["hidden"] < _channels(rows)
    same = dense[dense["c1"] == dense.loc[is_low, "c1"].min()]
    found = [
        paired_difference(low, group[group["hidden"] >= _channels(rows)], "missing")
        for _, group in same.groupby("features")
        for _, low in group[group["hidden"] < _channels(rows)].groupby("hidden")
    ]
    decided = [one for one in found if one is not None]
    if not decided:
        return []
    below, above = count_signs(decided)
    missing = _channels(rows) ** 2 - int(same["c1"].iloc[0])
    no_gain = sum(bounds(one)[0] > -STRONG * missing for one in decided)
    gain = sum(bounds(one)[1] < -STRONG * missing for one in decided)
    means = same.groupby("hidden", sort=False)["missing"].mean()
    spelled = ", ".join(f"{error:.1f} ({hidden})" for hidden, error in means.items())
    verdict = "confirmed" if gain == len(decided) else "open"
    return [
        Claim(
            "Sect. 4",
            "If a target has a low rank, matching should be easier and reduce the width "
            "requirement.",
            "not confirmed" if no_gain == len(decided) else verdict,
            f"With {missing} features missing, the best permutation found leaves the error of so "
            f"many missing ones, by hidden channels: {spelled}. In {no_gain} of {len(decided)} "
            f"comparisons (hidden channels below {_channels(rows)} x features, paired by draw, 95% "
            f"intervals) low rank saves fewer than {STRONG * missing:.0f} features; its error is "
            f"the smaller one in {below} and the larger in {above}.",
        )
    ]


def _called_low_rank(rows: pd.DataFrame) -> list[Claim]:
    channels = _channels(rows)
    printed = rows["hidden"].isin(PRINTED) & (rows["hidden"] >= channels)
    ranks = rows.loc[printed & rows["target"].isin(ANY_WIDTH), "rank"]
    if ranks.empty:
        return []
    full = (ranks == channels).sum()
    return [
        Claim(
            "Figure 4",
            "Targets W2 W1 through 100 and 300 hidden channels have a low rank.",
            "wrong in print" if full == len(ranks) else "open",
            f"The rank is at most {channels}, the target's own size, and {full} of {len(ranks)} "
            f"targets other than ID cond's and Ortho cond's have it.",
        )
    ]
