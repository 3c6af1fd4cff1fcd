"""Figure 3: how many folded hyperplanes pass by each point of the plane, and by the data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction import intervals
from bnrecon.reproduction.experiment import Task
from bnrecon.reproduction.sweeps import sweep
from bnrecon.reproduction.texts import Decisions, part
from bnrecon.studies.bn_explained.plane_counts import (
    DEPTH,
    LAYERS,
    RADIUS,
    RIM,
    SAMPLES,
    compare_counts,
    count_at_star,
    count_on_grid,
)
from bnrecon.studies.bn_explained.plane_networks import SETTINGS
from bnrecon.studies.bn_explained.star import REACH

EXCESS = 1.25  # a smaller ratio of counts is no focus
Ratios = list[Interval | None]
WIDTH = {"smoke": 64, "laptop": 1024, "paper": 1024}
SMALL = {"smoke": 6, "laptop": 32, "paper": 32}  # width at which the exact partition is feasible
SEEDS = {"smoke": 2, "laptop": 5, "paper": 20}
SIDE = {"smoke": 8, "laptop": 64, "paper": 128}
CHECKED = {"smoke": 10, "laptop": 60, "paper": 200}  # points at which the counts are compared


SIZE = {"width": WIDTH, "side": SIDE}
MAPS = sweep(count_on_grid, "map, {setting}", {"setting": SETTINGS}, SIZE)
STARS = sweep(count_at_star, "star, seed {seed}", {"seed": SEEDS}, SIZE)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """The maps of the first seed, the counts at the star of every seed, and the comparisons."""
    compared = [
        Task(
            f"comparison, width {width}",
            compare_counts,
            {"width": width, "exact": exact, "points": CHECKED[scale]},
        )
        for width, exact in ((WIDTH[scale], False), (SMALL[scale], True))
    ]
    return [*MAPS(scale, options), *STARS(scale, options), *compared]


def _select(rows: pd.DataFrame, kind: str, setting: str, layer: int) -> pd.DataFrame:
    own = rows[(rows["kind"] == kind) & (rows["setting"] == setting)]
    return own[own["layer"] == layer] if len(own) else own


def _ratio(own: pd.DataFrame, above: str, below: str) -> Interval | None:
    """Of two mean counts, paired by seed; ``None`` where nothing was counted below.

    The differences by seed are relative to the mean over seeds.
    """
    if own[below].sum() == 0:
        return None
    return mean_interval(list(1 + (own[above] - own[below]) / own[below].mean()))


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per setting and layer."""
    lines = []
    for setting in SETTINGS:
        for layer in LAYERS:
            line = {"setting": setting, "layer": layer}
            own = _select(rows, "counts", setting, layer)
            if not own.empty:
                line["mean count"] = f"{own['window'].mean():.1f}"
                line["at the data, to mean"] = _shown(_ratio(own, "data", "window"))
                line["at the data, to turned data"] = _shown(_ratio(own, "data", "turned"))
                line["on the rim, to mean"] = _shown(_ratio(own, "rim", "window"))
            line |= _agreement(_select(rows, "comparison", setting, layer))
            lines.append(line)
    return pd.DataFrame(lines).fillna("")


def _agreement(own: pd.DataFrame) -> dict[str, str]:
    line = {}
    for row in own.to_dict("records"):
        local, width = row["local"], int(row["width"])
        line[f"local map to sampled, width {width}"] = _quotient(local, row["sampled"])
        if row.get("units", np.nan) >= 0:
            line[f"local map to exact, width {width}"] = _quotient(local, row["units"])
            line[f"facets a unit, width {width}"] = _quotient(row["facets"], row["units"])
    return line


def _quotient(above: float, below: float) -> str:
    return f"{above / below:.2f}" if below else f"{above:g} to 0"


def fill_caption(rows: pd.DataFrame) -> dict[str, Any]:
    """What the caption names."""
    counts = rows[rows["kind"] == "counts"]
    width = f", width {int(counts['width'].iloc[0])}" if len(counts) else ""
    numbers = {"depth": DEPTH, "width": width, "radius": RADIUS, "rim": RIM, "samples": SAMPLES}
    return numbers | {"reach": REACH}


def draw(rows: pd.DataFrame) -> Figure:
    """The paper's panels: the data, and a row of maps per setting."""
    figure, axes = new_figure(3, 4, (PAGE, 5.4), squeeze=False)
    drawn = rows.reindex(columns=["kind", "setting", "x", "y", *(f"layer_{n}" for n in LAYERS)])
    maps, star = (drawn[drawn["kind"] == kind] for kind in ("map", "star"))
    star = star.drop_duplicates(["x", "y"])  # the same in every setting
    for axis, setting, line in zip(axes[:, 0], SETTINGS, axes[:, 1:], strict=True):
        axis.plot(star["x"], star["y"], "k.", markersize=2)
        axis.set_ylabel(setting)
        for panel, layer in zip(line, LAYERS, strict=True):
            own = maps[maps["setting"] == setting].sort_values(["y", "x"])
            side = round(len(own) ** 0.5)
            if side:
                counts = own[f"layer_{layer}"].to_numpy(float).reshape(side, side)
                largest = counts.max()
                panel.imshow(
                    counts / max(largest, 1),
                    extent=(-REACH, REACH, -REACH, REACH),
                    origin="lower",
                    cmap="Blues",
                    vmin=0,
                    vmax=1,
                )
                panel.set_title(f"maximum {largest:.0f}", loc="right", pad=2)
    for panel in axes.flat:
        panel.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xticks=[], yticks=[], aspect="equal")
        panel.grid(False)
        panel.spines[["top", "right"]].set_visible(True)
    for panel, title in zip(axes[-1], ("data", *(f"layer {n}" for n in LAYERS)), strict=True):
        panel.set_xlabel(title)
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """The three conclusions of Section 3.3, and how the count is made."""
    verdicts: dict[str, bool | str] = {}
    numbers: dict[str, Any] = {}
    for kind, conclude in (("counts", _conclude), ("comparison", _compare_ways)):
        if (rows["kind"] == kind).any():
            some, their_numbers = conclude(rows[rows["kind"] == kind])
            verdicts |= some
            numbers |= their_numbers
    return verdicts, numbers


def _conclude(rows: pd.DataFrame) -> Decisions:
    zero, random, norm = SETTINGS

    def all_layers(setting: str, above: str, below: str) -> Ratios:
        layers = [_select(rows, "counts", setting, layer) for layer in LAYERS]
        return [_ratio(group, above, below) for group in layers]

    focus = {setting: all_layers(setting, "data", "turned") for setting in SETTINGS}
    counts = rows.set_index(["setting", "layer"])
    means = counts["window"].groupby(level=[0, 1]).mean()
    through, units = counts.loc[[zero], "origin"].min(), counts["width"].iloc[0]
    central = intervals.decide(one and EXCESS - one for one in focus[zero])
    rim = [gain for layer in LAYERS for gain in _more_on_rim(rows, layer)]
    return {
        "Figure 3, (i)": intervals.decide(one and one - EXCESS for one in focus[norm]),
        "Figure 3, (ii)": intervals.decide(rim),
        "Figure 3, (iii)": "contradicted" if through < units else central,
    }, {
        "focus": {setting: _list(ratios) for setting, ratios in focus.items()},
        "rim": {name: _list(all_layers(name, "rim", "window")) for name in SETTINGS},
        "window": _list(all_layers(norm, "data", "window")),
        "centred": _list(all_layers(zero, "centred", "window")),
        "means": ", ".join(f"{means[random, layer]:.1f}" for layer in LAYERS),
        "through": through,
        "units": units,
    }


def _more_on_rim(rows: pd.DataFrame, layer: int) -> Ratios:
    """The rim's count to the mean with random bias, minus that of both others, paired by seed."""
    counts = rows[(rows["kind"] == "counts") & (rows["layer"] == layer)].set_index("seed")
    if (counts["window"] == 0).any():
        return [None]
    share = counts["rim"] / counts["window"]
    zero, random, norm = (share[counts["setting"] == setting] for setting in SETTINGS)
    return [mean_interval(list(random - other)) for other in (zero, norm)]


def _compare_ways(compared: pd.DataFrame) -> Decisions:
    """Sampling the ball against the local map, and that against the exact partition."""
    wide = compared[compared["width"] == compared["width"].max()]
    share = wide["sampled"].sum() / wide["local"].sum()
    exact, small = "", compared.dropna(subset=["units"]) if "units" in compared else compared[:0]
    if len(small):
        units, last = small["units"].sum(), small[small["layer"] == LAYERS[-1]]
        norm = last[last["setting"] == SETTINGS[-1]]
        exact = (
            f"; at width {int(small['width'].iloc[0])} the local map counts "
            f"{100 * small['local'].sum() / units:.0f}% of the exact partition's units, with a "
            f"mean absolute deviation of {100 * small['deviation'].sum() / units:.0f}% at a point. "
            f"Facets are another count: {norm['facets'].sum() / norm['units'].sum():.0f} for each "
            f"unit at layer {LAYERS[-1]} with BN, which neither the local map nor samples see"
        )
    expected = 100 * wide["expected"].sum() / wide["local"].sum()
    numbers = {"samples": SAMPLES, "share": 100 * share, "expected": expected, "exact": exact}
    return {"Sect. 3.3, counting in 2D": bool(share > 0.9)}, numbers


def _list(ratios: Ratios) -> str:
    shown = ", ".join(_shown(ratio).partition(" (")[0] for ratio in ratios)
    return shown + "".join(f" (n={ratio.n})" for ratio in ratios[:1] if ratio)


def _shown(ratio: Interval | None) -> str:
    return f"{ratio}" if ratio else "none counted"


PART = part(__file__, tasks, summarize, draw, decide, numbers=fill_caption)
