"""Figure 4 (right): permuting Bernoulli masks to fit too few features."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch

from bnrecon.features.portable_random import Stream
from bnrecon.reporting.figures import PAGE, Axes, Figure, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction import intervals
from bnrecon.reproduction.parts import Decision, Decisions, only, part, read_text, sweep, table
from bnrecon.studies.random_features import permutation_search as permuting
from bnrecon.studies.random_features.averages import interval_of, intervals_by
from bnrecon.studies.random_features.feature_matrices import COLOURS

TEXT = read_text(__file__)
DENSITIES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
MISSING = 100  # of the paper's 2500 features
ID_COND = "ID cond"  # masks are sums of its features
GAP = 0.99  # between the last two densities
HALF = 0.5  # lower densities count as low
PANELS = {"greedy": "(a) greedy pass", "best": "(b) best permutation found"}


def measure_masks(
    seed: int, channels: int, missing: int, searches: Sequence[str], features: Sequence[str]
) -> pd.DataFrame:
    """Permute Bernoulli masks: one row per distribution of features and density of the mask.

    Arguments are those of ``fit_targets``. All are part of the task's key, so other searches are
    computed anew.
    """
    targets = [({"density": p}, bernoulli_mask(channels, p, seed)) for p in DENSITIES]
    return permuting.fit_targets(targets, channels, missing, seed, searches, features)


def bernoulli_mask(channels: int, density: float, seed: int) -> torch.Tensor:
    """Draw a mask (channels, channels): ones with probability ``density``, else zeros."""
    uniform = Stream(seed, 2_000).uniform((channels, channels), "mask", 0.5).double() + 0.5
    return (uniform < density).double()


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per distribution of features and density of the mask."""

    def fitted(group: pd.DataFrame) -> str:
        return f"{(group['best'] < permuting.NONE).sum()} of {len(group)}"

    columns: dict[str, Any] = {
        "features": "features",
        "density p": "density",
        "width c1": "c1",
        **{title: interval_of(search) for search, title in permuting.SEARCHES.items()},
        "draws fitted, best permutation": fitted,
    }
    return table(permuting.with_best(rows), ["features", "density"], False, **columns)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw error against the mask's density, solid as drawn, dotted permuted, as in the paper.

    No line leads to p = 1, where all rows are equal: nothing is measured between 0.7 and 1.
    """
    _, rows = permuting.split_shared(rows)
    figure, panels = new_figure(1, 2, (PAGE, 3.0), sharey=True)
    for axes, (search, title) in zip(panels, PANELS.items(), strict=True):
        for label, group in rows.groupby("features", sort=False):
            _draw_line(axes, group, "unpermuted", "-", COLOURS[label], str(label))
            _draw_line(axes, group, search, ":", COLOURS[label])
        title = f"{title}, c1 = {rows['c1'].iloc[0]}"
        axes.set(title=title, xlabel="density p of the mask")
    channels, draws = rows["channels"].iloc[0], rows["seed"].nunique()
    axes.plot([], [], "-", color="black", label="not permuted")
    axes.plot([], [], ":", color="black", label="permuted")
    panels[0].set_ylabel("root mean squared error")
    title = f"c0 = c2 = {channels}; {draws} draws, 95% intervals"
    handles, spacing = axes.get_legend_handles_labels(), {"columnspacing": 1.2, "handlelength": 1.5}
    figure.legend(*handles, title=title, loc="outside upper center", ncols=8, **spacing)
    return figure


def _draw_line(
    axes: Axes, rows: pd.DataFrame, column: str, style: str, colour: str, label: str | None = None
) -> None:
    line = intervals_by(rows, "density", column)
    line.loc[GAP] = float("nan")  # interrupts the line
    line = line.sort_index()
    bars: Any = {"color": colour, "linestyle": style, "label": label, "marker": "."}
    axes.errorbar(line.index, line["mean"], line["half_width"], **bars)


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide which masks permuting fits with too few features, and its effect on others' errors."""
    shared, rows = permuting.split_shared(rows)
    id_cond = rows["features"] == ID_COND
    return [
        _possible(rows[id_cond], rows[~id_cond]),
        _low_density(rows[id_cond], shared),
        _at_every_density(rows),
    ]


def _fits(rows: pd.DataFrame) -> pd.DataFrame:
    """Draws fitted without error, by density and search."""
    fitted = rows[["unpermuted", "greedy", "printed_masks", "best"]] < permuting.NONE
    return fitted.groupby(rows["density"]).sum()


def _possible(id_cond: pd.DataFrame, others: pd.DataFrame) -> Decision:
    """Does the greedy pass, the paper's search, fit masks that have an error unpermuted?"""
    fits, rows = _fits(id_cond), pd.concat([id_cond, others])
    numbers = {
        "draws": rows["seed"].nunique(),
        "always": _fitted_densities(id_cond, "greedy")[0],
        "printed": _fitted_densities(id_cond, "printed_masks")[0],
        "unpermuted": f"{fits['unpermuted'].sum()} of {len(id_cond)}",
        "others": _fits(others)["greedy"].sum(),
        "c1": rows["c1"].iloc[0],
        "n": rows["channels"].iloc[0] ** 2,
    }
    return "possible", bool((fits["greedy"] > fits["unpermuted"]).any()), numbers


def _fitted_densities(rows: pd.DataFrame, search: str = "best") -> tuple[float, float]:
    """The largest densities at which all draws and some draws are fitted; 0 if none."""
    best = _fits(rows)[search]
    every, some = (best.index[best >= least] for least in (rows["seed"].nunique(), 1))
    return max(every, default=0), max(some, default=0)


def _low_density(id_cond: pd.DataFrame, shared: pd.DataFrame) -> Decision:
    """Up to which density any permutation fits, by exact assignments."""
    always, ever = _fitted_densities(id_cond)
    other = ""
    if len(shared):
        every, some = _fitted_densities(shared)
        other = " " + TEXT.sentence("densities with one shared", every=every, some=some)
    enough = id_cond["seed"].nunique() >= permuting.DRAWS["paper"]
    numbers = {"always": always, "ever": ever, "half": HALF, "shared": other}
    return "low", always < HALF if enough else "undecided", numbers


def _at_every_density(rows: pd.DataFrame) -> Decision:
    """The share of the error that the greedy pass leaves, by construction never more than all."""
    rows = rows[rows["density"] < 1]
    error = rows.groupby(["features", "density"])[["greedy", "unpermuted"]].mean()
    shares = (100 * error["greedy"] / error["unpermuted"]).round().fillna(0)  # of 0, 0 remains
    densest = rows[rows["density"] == rows["density"].max()]
    sums = densest.groupby("seed")[["greedy", "unpermuted"]].sum()
    ratio = mean_interval(list(100 * sums["greedy"] / sums["unpermuted"]))
    others = shares.drop(index=ID_COND, level="features")
    numbers = {"ratio": ratio, "least": others.min(), "most": others.max()}
    numbers["highest"] = rows["density"].max()
    return "everywhere", intervals.decide([ratio - 75], least=2), numbers


CHANNELS = permuting.CHANNELS
LACKING = {scale: permuting.missing_features(MISSING, n) for scale, n in CHANNELS.items()}
USED = {scale: permuting.features_of_width(CHANNELS[scale], n) for scale, n in LACKING.items()}
FIXED = {"missing": LACKING, "searches": list(permuting.SEARCHES)}
FIXED |= {"features": USED, "channels": CHANNELS}
TASKS = sweep(measure_masks, "seed {seed}", {"seed": permuting.DRAWS}, FIXED)
FORMATS = dict.fromkeys(permuting.SEARCHES.values(), ".4f")
SAY_SHARED = partial(permuting.say_shared, TEXT)
SEARCHES = ("unpermuted", "greedy", "printed_masks")  # in the excerpt
UNUSED = [title for name, title in permuting.SEARCHES.items() if name not in SEARCHES]
EXCERPT = only("features", ID_COND, drop=["features", "width c1", *UNUSED])
SHOWN = only("density p", 0.1, 0.2, 0.3, 0.5, 0.7)
MORE = {"formats": FORMATS, "excerpt": lambda table: SHOWN(EXCERPT(table))}
PART = part(__file__, TASKS, summarize, draw, decide, SAY_SHARED, **MORE)
