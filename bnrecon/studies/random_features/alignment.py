"""Figure 4 (left, middle): permuting products of random matrices to fit too few features."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from bnrecon.reporting.figures import PAGE, Axes, Figure, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reporting.wording import span, spell
from bnrecon.reproduction import intervals
from bnrecon.reproduction.parts import Decision, Decisions, only, part, read_text, sweep, table
from bnrecon.studies.random_features import permutation_search as permuting
from bnrecon.studies.random_features.averages import differences_by, signs
from bnrecon.studies.random_features.feature_matrices import ANY_WIDTH, FEATURES, target_weight

TEXT = read_text(__file__)
# Hidden channels of the target W2 W1, and missing features of 2500. The first two are the paper's;
# it calls these targets low-rank, but dense ones have full rank there.
SIZES = ((100, 60), (300, 100), (25, 100), (10, 100))
PRINTED = (100, 300)  # the paper's hidden channels
DENSE = ("He normal", "orthogonal", "Ortho cond")  # with 10 hidden channels, ER targets have zeros
STRONG = 10  # percent of the error: our measure of a strong association
SPARSE = 0.5  # a target with more nonzero weights is not highly sparse
LEAST_DRAWS = 2  # the half-width shows how little two draws tell
DRAWN = {
    "unpermuted": "not permuted",
    "greedy": "greedy pass",
    "best": "best found (ID cond: exact)",
}


def _sizes(channels: int) -> list[tuple[int, int, list[str]]]:
    """Hidden channels, missing features, and the distributions that lack so many."""
    missing = {hidden: permuting.missing_features(of_2500, channels) for hidden, of_2500 in SIZES}
    return [(*size, permuting.features_of_width(channels, size[1])) for size in missing.items()]


def measure_alignment(hidden: int, channels: int, seed: int, **search: Any) -> pd.DataFrame:
    """Permute targets W2 W1 of root mean square 1: one row per pair of distributions.

    ``hidden`` channels lie between the two factors. The other arguments are those of
    ``fit_targets``. All are part of the task's key, so other searches are computed anew.
    """
    targets = []
    for label, name in FEATURES.items():
        target = target_weight(name, channels, channels, seed, hidden)
        rank = int(torch.linalg.matrix_rank(target))
        target = target * (target.numel() ** 0.5 / target.norm())
        targets.append(({"target": label, "hidden": hidden, "rank": rank}, target))
    return permuting.fit_targets(targets, channels, seed=seed, **search)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per hidden size and feature distribution: means over dense targets and draws."""
    dense = permuting.with_best(rows[rows["target"].isin(DENSE)])
    columns: dict[str, Any] = {
        "hidden channels": "hidden",
        "rank of the targets": lambda group: span(group["rank"]),
        "width c1": "c1",
        "features": "features",
        **{title: _over_draws(search) for search, title in permuting.SEARCHES.items()},
        "best found": _over_draws("best"),
        "equivalent number of missing features": _over_draws("missing"),
    }
    return table(dense, ["hidden", "features"], False, **columns)


def _over_draws(column: str) -> Callable[[pd.DataFrame], Interval | None]:
    """The interval over draws of a draw's mean over targets; ``None`` if a value is missing."""
    return lambda rows: (
        mean_interval(list(rows.groupby("seed")[column].mean()))
        if rows[column].notna().all()
        else None
    )


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the paper's colour-coded tables of mean errors: targets in columns, features in rows."""
    _, rows = permuting.split_shared(rows)
    sizes = list(dict.fromkeys(rows["hidden"]))
    shared = {"sharex": True, "sharey": True, "squeeze": False}
    figure, grid = new_figure(len(DRAWN), len(sizes), (PAGE, 5.6), **shared)
    figure.set_layout_engine("constrained", w_pad=0.01, wspace=0)
    means = rows.groupby(["hidden", "features", "target"])[list(DRAWN)].mean()
    largest = 1000 * float(means.max().max())
    for row, (search, title) in enumerate(DRAWN.items()):
        for axes, hidden in zip(grid[row], sizes, strict=True):
            group = rows[rows["hidden"] == hidden]
            image = _draw_table(axes, group, search, largest)
            if row == 0:
                letter = "abcd"[sizes.index(hidden)]
                axes.set_title(f"({letter}) hidden: {hidden}\nc1 = {group['c1'].iloc[0]}")
            if row == len(DRAWN) - 1:
                axes.set_xlabel("target")
        grid[row][0].set_ylabel(f"{title}\nfeatures")
    figure.colorbar(image, ax=grid, label="rmse, 10⁻³", fraction=0.02, pad=0.01)
    channels, draws = rows["channels"].iloc[0], rows["seed"].nunique()
    figure.suptitle(f"c0 = c2 = {channels}; targets of root mean square 1; {draws} draws")
    return figure


def _draw_table(axes: Axes, rows: pd.DataFrame, search: str, largest: float) -> Any:
    """Draw mean errors in thousandths, in colours from 0 to the figure's ``largest``."""
    names = list(FEATURES)
    errors = 1000 * rows.pivot_table(index="features", columns="target", values=search)
    errors = errors.loc[names, names]
    image = axes.imshow(errors, cmap="viridis", vmin=0, vmax=largest, aspect="auto")
    for (y, x), value in np.ndenumerate(errors.to_numpy()):
        colour = "black" if value > 0.6 * largest else "white"
        axes.text(x, y, f"{value:.0f}", ha="center", va="center", fontsize=6.5, color=colour)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    return image


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide what can be fitted, by which features, and whether a low rank helps."""
    every_shared, rows = permuting.split_shared(rows)
    dense, shared = (some[some["target"].isin(DENSE)] for some in (rows, every_shared))
    others = dense[dense["features"] != "ID cond"]
    pooled = _pooled(dense, "greedy")
    return [
        _fitted("fitted", rows[rows["features"] == "ID cond"]),
        *([_fitted("fitted shared", every_shared)] if len(shared) else []),
        _approximation(dense),
        ("greedy", intervals.decide([pooled], LEAST_DRAWS), _compared(dense, "greedy")),
        *([_with_one_shared(shared, others)] if len(shared) else []),
        ("exchanges", _decide_below(_pooled(dense, "exchanges")), _compared(dense, "exchanges")),
        _alike(rows),
        *_low_rank(dense),
        *_called_low_rank(rows),
    ]


def _channels(rows: pd.DataFrame) -> int:
    return int(rows["channels"].iloc[0])


def _fitted(name: str, rows: pd.DataFrame) -> Decision:
    """What the searches fit without error: ID cond features ID cond targets, and others."""
    alike = rows["target"] == "ID cond"
    fitted = rows[["unpermuted", "greedy", "printed_masks", "best"]] < permuting.NONE
    id_cond, others = fitted[alike].sum(), fitted[~alike].sum()
    numbers: dict[str, Any] = {"of": alike.sum(), "of_others": (~alike).sum()}
    weights = [
        target_weight(FEATURES[row.target], row.channels, row.channels, row.seed, row.hidden)
        for row in rows[fitted.any(axis=1) & ~alike].itertuples()
    ]
    densest = max((float((weight != 0).double().mean()) for weight in weights), default=0.0)
    numbers["dense"] = TEXT.sentence("nonzero", densest=densest) if weights else ""
    named = rows[(fitted["best"]) & ~alike]["target"].unique()
    numbers["named"] = " and ".join(named)
    numbers |= {"by_greedy": others["greedy"], "by_masks": others["printed_masks"]}
    verdict: bool | str = bool(id_cond["greedy"] and densest < SPARSE)
    if name == "fitted shared":
        verdict = "undecided"  # these fits are limits, and the paper may not share a feature
    return name, verdict, numbers | {"id_cond": id_cond, "others": others}


def _approximation(dense: pd.DataFrame) -> Decision:
    """How many missing features a permutation replaces, in terms of the error."""
    n = _channels(dense) ** 2
    shares = 100 * dense["missing"] / (n - dense["c1"])
    share = mean_interval(list(shares.groupby(dense["seed"]).mean()))
    means = dense.groupby("c1")["missing"].mean()
    counts = ", ".join(f"{mean:.1f} of {n - width}" for width, mean in means.items())
    verdict = intervals.decide([50 - share], LEAST_DRAWS)
    missing = " or ".join(str(n - width) for width in means.index)
    return "approximation", verdict, {"counts": counts, "share": share, "n": n, "missing": missing}


def _with_one_shared(shared: pd.DataFrame, others: pd.DataFrame) -> Decision:
    """The greedy pass with a shared feature, which leaves fewer entries missing: no verdict."""
    both = pd.concat([others, shared.assign(features="ID cond")])
    n, reached = _channels(shared) ** 2, _channels(shared) - 1  # more entries per width
    numbers = _compared(both, "greedy")
    numbers["fewer"] = " and ".join(str(n - c1 - reached) for c1 in _widths(shared))
    numbers["usual"] = " and ".join(str(n - c1) for c1 in _widths(others))
    # The closest numbers of missing entries, more of them without a shared feature
    most = shared[shared["hidden"] == shared["hidden"].max()]
    least = others[others["c1"] == others["c1"].max()]
    closest = intervals.paired_difference(most, least, "greedy")
    numbers |= {"closest": spell(closest, ".4f"), "most": n - most["c1"].max() - reached}
    return "shared", "undecided", numbers | {"least": n - least["c1"].max()}


def _widths(rows: pd.DataFrame) -> list[int]:
    return sorted(rows["c1"].unique(), reverse=True)


def _pooled(dense: pd.DataFrame, search: str) -> Interval | None:
    """The error with ID cond features minus the others' mean, over all sizes, by draw."""
    id_cond = dense["features"] == "ID cond"
    return intervals.paired_difference(dense[id_cond], dense[~id_cond], search)


def _compared(dense: pd.DataFrame, search: str) -> dict[str, Any]:
    """The pooled difference, and the signs of differences by size and other features."""
    id_cond = dense["features"] == "ID cond"
    differences = [
        difference
        for _, others in dense[~id_cond].groupby("features")
        for difference in differences_by(dense[id_cond], others, "hidden", search)
    ]
    return {"pooled": spell(_pooled(dense, search), ".4f")} | signs(differences)


def _alike(rows: pd.DataFrame) -> Decision:
    """A target's error with features of its distribution, minus that with the others."""
    rows = rows[(rows["features"] != "ID cond") & (rows["target"] != "ID cond")]
    mean = rows.groupby(["hidden", "target"])["best"].transform("mean")
    rows = rows.assign(change=100 * rows["best"] / mean, alike=rows["features"] == rows["target"])
    pooled = intervals.paired_difference(rows[rows["alike"]], rows[~rows["alike"]], "change")
    verdict = intervals.decide([pooled and pooled + STRONG], LEAST_DRAWS)
    return "alike", verdict, {"strong": STRONG, "pooled": spell(pooled, ".1f")}


def _low_rank(dense: pd.DataFrame) -> list[Decision]:
    """At one width: what low-rank targets leave, minus what full-rank targets leave."""
    is_low = dense["hidden"] < _channels(dense)
    is_same = dense["c1"] == dense.loc[is_low, "c1"].min()
    full = dense[is_same & ~is_low]
    groups = dense[is_same & is_low].groupby("hidden", sort=False)
    return [_against_full_rank(low, full) for _, low in groups if len(full)]


def _against_full_rank(low: pd.DataFrame, full: pd.DataFrame) -> Decision:
    pooled = intervals.paired_difference(low, full, "missing")
    numbers = {
        "hidden": low["hidden"].iloc[0],
        "missing": _channels(low) ** 2 - int(low["c1"].iloc[0]),
        "full": full["missing"].mean(),
        "difference": spell(pooled, ".1f"),
    }
    return "rank", _decide_below(pooled), numbers


def _decide_below(difference: Interval | None) -> str:
    return intervals.decide([difference and -difference], LEAST_DRAWS)


def _called_low_rank(rows: pd.DataFrame) -> list[Decision]:
    channels = _channels(rows)
    printed = rows[rows["hidden"].isin(PRINTED) & (rows["hidden"] >= channels)]
    targets = printed.drop_duplicates(["hidden", "target", "seed"])  # the same for all features
    is_product = targets["target"].isin(ANY_WIDTH)
    ranks, others = targets.loc[is_product, "rank"], targets[~is_product]
    if ranks.empty:
        return []
    full = (ranks == channels).sum()
    summed = others.groupby("hidden")["rank"]
    sums = ", ".join(f"{span(of_size)} at {hidden}" for hidden, of_size in summed)
    numbers = {"channels": channels, "full": full, "of": len(ranks)}
    verdict = "false as stated" if full == len(ranks) else "undecided"
    return [("called", verdict, numbers | {"sums": sums or "not computed"})]


SIZED = {scale: _sizes(channels) for scale, channels in permuting.CHANNELS.items()}
OVER: dict[Any, Any] = {"seed": permuting.DRAWS, ("hidden", "missing", "features"): SIZED}
FIXED = {"channels": permuting.CHANNELS, "searches": list(permuting.SEARCHES)}
TASKS = sweep(measure_alignment, "hidden {hidden}, seed {seed}", OVER, FIXED)
FORMATS = dict.fromkeys([*permuting.SEARCHES.values(), "best found"], ".4f")
FORMATS["equivalent number of missing features"] = ".1f"
SAY_SHARED = partial(permuting.say_shared, TEXT)
SHOWN = ("He normal", *permuting.SINGLE_ENTRIES)  # the others are near He normal
UNUSED = [*permuting.DETAILS, "best found", "best permutation (exact)", "width c1"]
UNUSED += ["rank of the targets", "equivalent number of missing features"]
EXCERPT = only("features", *SHOWN, drop=UNUSED)
PART = part(
    __file__,
    TASKS,
    summarize,
    draw,
    decide,
    SAY_SHARED,
    formats=FORMATS,
    excerpt=lambda table: EXCERPT(table)[:6],  # the paper's sizes
)
