"""Figure 3: how many folded hyperplanes pass by each point of the plane, and by the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.intervals import decide
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

__all__ = ["PART"]

EXCESS = 1.25  # a smaller ratio of counts is no focus
Ratios = list[Interval | None]
WIDTH = {"smoke": 64, "laptop": 1024, "paper": 1024}
SMALL = {"smoke": 6, "laptop": 32, "paper": 32}  # width at which the exact partition is feasible
SEEDS = {"smoke": 2, "laptop": 5, "paper": 20}
SIDE = {"smoke": 8, "laptop": 64, "paper": 128}
CHECKED = {"smoke": 10, "laptop": 60, "paper": 200}  # points at which the counts are compared


def tasks(scale: str, _: Sequence[str]) -> list[Task]:
    """The maps of the first seed, the counts at the star of every seed, and the comparisons."""
    width, side = WIDTH[scale], SIDE[scale]
    size = {"width": width, "side": side}
    maps = [
        Task(f"map, {setting}", count_on_grid, {"setting": setting} | size) for setting in SETTINGS
    ]
    stars = [
        Task(f"star, seed {seed}", count_at_star, {"seed": seed} | size)
        for seed in range(SEEDS[scale])
    ]
    compared = [
        Task(
            f"comparison, width {number}",
            compare_counts,
            {"width": number, "exact": exact, "points": CHECKED[scale]},
        )
        for number, exact in ((width, False), (SMALL[scale], True))
    ]
    return [*maps, *stars, *compared]


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


def _caption(rows: pd.DataFrame) -> str:
    counts = rows[rows["kind"] == "counts"]
    size = f", width {int(counts['width'].iloc[0])}" if len(counts) else ""
    return (
        f"{DEPTH} layers{size}, leaky ReLU, weights and biases as in Figure 1; the BN statistics "
        f"are those of the 50 points of a star off the origin. Count: units whose zero set passes "
        f"within {RADIUS} of a point of the window [{-REACH}, {REACH}]², by the affine map at the "
        "point, |h| ≤ ε ‖∇h‖. Turned data: the star turned about the origin by 90, 180 and 270 "
        "degrees, at which a network that does not know the data has as many on average. Rim: "
        f"points of the window with a coordinate beyond ±{RIM:g}. The local map is compared with "
        f"units that change sign among {SAMPLES} samples of the ball, as in the paper (a lower "
        "bound), and at a small width with the exact partition of the window, whose facets (one "
        "for each region of the earlier layers) are counted, too. Figure: the first seed, each "
        "panel relative to its maximum. With BN layer 1 is central, too: its centre is the mean of "
        "the data (Corollary 2)."
    )


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


def claims(rows: pd.DataFrame) -> list[Claim]:
    """The three conclusions of Section 3.3, and how the count is made."""
    found = []
    if (rows["kind"] == "counts").any():
        found += _conclusions(rows)
    if (rows["kind"] == "comparison").any():
        found.append(_agreement_claim(rows[rows["kind"] == "comparison"]))
    return found


def _conclusions(rows: pd.DataFrame) -> list[Claim]:
    zero, random, norm = SETTINGS

    def all_layers(setting: str, above: str, below: str) -> Ratios:
        own = [_select(rows, "counts", setting, layer) for layer in LAYERS]
        return [_ratio(part, above, below) for part in own]

    focus = {setting: all_layers(setting, "data", "turned") for setting in SETTINGS}
    rim = {setting: all_layers(setting, "rim", "window") for setting in SETTINGS}
    window = {setting: all_layers(setting, "data", "window") for setting in SETTINGS}
    counts = rows[rows["kind"] == "counts"].set_index(["setting", "layer"])
    means = counts["window"].groupby(level=[0, 1]).mean()
    through, units = counts.loc[[zero], "origin"].min(), counts["width"].iloc[0]
    centred = all_layers(zero, "centred", "window")
    return [
        Claim(
            "Figure 3, (i)",
            "BN clearly focuses the spline partition on the data.",
            decide(one and one - EXCESS for one in focus[norm]),
            f"at layers 1, 7, 11 the count at the data is {_list(focus[norm])} times that at the "
            f"turned data, and {_list(window[norm])} times the window's mean.",
        ),
        Claim(
            "Figure 3, (ii)",
            "Random bias creates a random partition that is diffused over the entire input space.",
            decide([gain for layer in LAYERS for gain in _more_on_rim(rows, layer)]),
            f"the count on the window's rim is {_list(rim[random])} of the mean (zero bias "
            f"{_list(rim[zero])}, BN {_list(rim[norm])}); but the window's mean count falls with "
            f"depth, {', '.join(f'{means[random, layer]:.1f}' for layer in LAYERS)}, as biases add "
            "up that do not depend on the input.",
        ),
        Claim(
            "Figure 3, (iii)",
            "Zero bias creates a (more or less) central arrangement that does not focus on the "
            "data.",
            "contradicted"
            if through < units
            else decide(one and EXCESS - one for one in focus[zero]),
            f"at the origin {through:.0f} of {units:.0f} units meet in every layer; the count at "
            f"the data is {_list(focus[zero])} times that at the turned data. The star is off the "
            f"origin: around the origin it would have {_list(centred)} times the window's mean.",
        ),
    ]


def _more_on_rim(rows: pd.DataFrame, layer: int) -> Ratios:
    """The rim's count to the mean with random bias, minus that of both others, paired by seed."""
    counts = rows[(rows["kind"] == "counts") & (rows["layer"] == layer)].set_index("seed")
    if (counts["window"] == 0).any():
        return [None]
    share = counts["rim"] / counts["window"]
    zero, random, norm = (share[counts["setting"] == setting] for setting in SETTINGS)
    return [mean_interval(list(random - other)) for other in (zero, norm)]


def _agreement_claim(compared: pd.DataFrame) -> Claim:
    wide = compared[compared["width"] == compared["width"].max()]
    share = wide["sampled"].sum() / wide["local"].sum()
    evidence = (
        f"{SAMPLES} samples find {100 * share:.0f}% of the local map's count, and "
        f"{100 * wide['expected'].sum() / wide['local'].sum():.0f}% would be found without folds"
    )
    small = compared.dropna(subset=["units"]) if "units" in compared else compared[:0]
    if len(small):
        units, last = small["units"].sum(), small[small["layer"] == LAYERS[-1]]
        norm = last[last["setting"] == SETTINGS[-1]]
        evidence += (
            f"; at width {int(small['width'].iloc[0])} the local map counts "
            f"{100 * small['local'].sum() / units:.0f}% of the exact partition's units, with a "
            f"mean absolute deviation of {100 * small['deviation'].sum() / units:.0f}% at a point. "
            f"Facets are another count: {norm['facets'].sum() / norm['units'].sum():.0f} for each "
            f"unit at layer {LAYERS[-1]} with BN, which neither the local map nor samples see"
        )
    return Claim(
        "Sect. 3.3, counting in 2D",
        "Sampling the ball counts the folded hyperplanes that pass through it.",
        "confirmed" if share > 0.9 else "contradicted",
        evidence + ".",
    )


def _list(ratios: Ratios) -> str:
    shown = ", ".join(_shown(ratio).partition(" (")[0] for ratio in ratios)
    return shown + "".join(f" (n={ratio.n})" for ratio in ratios[:1] if ratio)


def _shown(ratio: Interval | None) -> str:
    return f"{ratio}" if ratio else "none counted"


PART = Experiment(
    "Figure 3",
    "Folded hyperplanes around the points of the plane",
    tasks,
    summarize,
    _caption,
    draw,
    claims=claims,
)
