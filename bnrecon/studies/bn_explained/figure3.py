"""Figure 3: how many folded hyperplanes pass by each point of the plane, and by the data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from bnrecon.partition import (
    count_by_local_map,
    count_by_sampling,
    count_in_slice,
    detection_probability,
    fold_distances,
    partition,
)
from bnrecon.reporting.figures import PAGE, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.bn_explained.plane_networks import SETTINGS, draw_layers, square
from bnrecon.studies.bn_explained.star import REACH, draw_star, grid, turned

__all__ = ["LAYERS", "PART", "count_at_star", "count_on_grid"]

DEPTH = 11
LAYERS = (1, 7, 11)
RADIUS = 0.1
RIM = 2.0  # beyond it a point of the window is on its rim, which the star does not reach
SAMPLES = 256  # of a ball, where the paper's count is made
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


def _draw(width: int, setting: str, seed: int) -> torch.nn.Module:
    layers: torch.nn.Module = draw_layers((width,) * DEPTH, setting, draw_star(seed), seed)
    return layers


def _count(network: torch.nn.Module, points: np.ndarray) -> np.ndarray:
    """By the local affine map, at the layers of ``LAYERS``: (n, 3)."""
    counts = count_by_local_map(network, torch.from_numpy(points), RADIUS)
    return counts[:, [layer - 1 for layer in LAYERS]]


def count_on_grid(setting: str, width: int, side: int, seed: int = 0) -> pd.DataFrame:
    """One row per cell of the window (kind ``map``), and one per point of the star (``star``)."""
    cells = pd.DataFrame(grid(side), columns=["x", "y"]).round(4)
    counts = _count(_draw(width, setting, seed), grid(side))
    for layer, found in zip(LAYERS, counts.T, strict=True):
        cells[f"layer_{layer}"] = found
    star = pd.DataFrame(draw_star(seed), columns=["x", "y"])
    return pd.concat([cells.assign(kind="map"), star.assign(kind="star")]).assign(setting=setting)


def count_at_star(width: int, side: int, seed: int) -> pd.DataFrame:
    """One row per setting and layer: mean counts.

    ``data``: at the star. ``turned``: at the star turned about the origin by 90, 180, 270 degrees.
    ``window``: over the window, and its ``maximum``. ``rim``: over the window's rim. ``centred``:
    at the star moved to the origin, which only BN would see. ``origin``: at the origin.
    """
    star, cells = draw_star(seed), grid(side)
    rim = np.abs(cells).max(1) > RIM
    rows = []
    for setting in SETTINGS:
        network = _draw(width, setting, seed)
        window = _count(network, cells)
        found = {
            "data": _count(network, star).mean(0),
            "turned": _count(network, turned(star)).mean(0),
            "window": window.mean(0),
            "maximum": window.max(0),
            "rim": window[rim].mean(0),
            "centred": _count(network, star - star.mean(0)).mean(0),
            "origin": _count(network, np.zeros((1, 2)))[0],
        }
        for index, layer in enumerate(LAYERS):
            row = {"kind": "counts", "setting": setting, "seed": seed, "layer": layer}
            row |= {"width": width, "side": side}
            rows.append(row | {name: float(value[index]) for name, value in found.items()})
    return pd.DataFrame(rows)


def compare_counts(width: int, exact: bool, points: int) -> pd.DataFrame:
    """One row per setting and layer: counts summed over points, half of the star's, half anywhere.

    ``local``: by the local affine map. ``sampled``: units that change sign among samples of the
    ball, as in the paper. ``expected``: what sampling would find if the ball were not folded.
    ``units``, ``facets``: of the exact partition. ``deviation``: sum of absolute differences of
    ``local`` to ``units``, or to ``sampled``.
    """
    generator = np.random.Generator(np.random.Philox(key=(0, 3)))
    anywhere = generator.uniform(-REACH, REACH, (points - points // 2, 2))
    places = np.concatenate([draw_star(0)[: points // 2], anywhere])
    given = torch.from_numpy(places)
    rows = []
    for setting in SETTINGS:
        network = _draw(width, setting, 0)
        distances = fold_distances(network, given)
        sampled = count_by_sampling(network, given, RADIUS, samples=SAMPLES)
        folds = partition(network, square((0, 0), REACH + RADIUS)).folds if exact else None
        for layer in LAYERS:
            near = distances[layer - 1].numpy()
            local = (near <= RADIUS).sum(1)
            seen = sampled[:, layer - 1]
            row = {"kind": "comparison", "setting": setting, "layer": layer, "width": width}
            row |= {"points": len(places), "local": int(local.sum()), "sampled": int(seen.sum())}
            row["expected"] = float(detection_probability(near, RADIUS, 2, SAMPLES).sum())
            if folds is not None:
                own = folds.of(layer - 1)
                seen = count_in_slice(own, places, RADIUS)
                facets = count_in_slice(own, places, RADIUS, facets=True)
                row |= {"units": int(seen.sum()), "facets": int(facets.sum())}
            rows.append(row | {"deviation": int(np.abs(local - seen).sum())})
    return pd.DataFrame(rows)


def _ratio(rows: pd.DataFrame, setting: str, layer: int, above: str, below: str) -> Interval:
    """Of two mean counts, paired by seed; the differences are relative to the mean over seeds."""
    own = rows[(rows["kind"] == "counts") & (rows["setting"] == setting)]
    own = own[own["layer"] == layer]
    return mean_interval(list(1 + (own[above] - own[below]) / own[below].mean()))


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per setting and layer."""
    counts, compared = (rows[rows["kind"] == kind] for kind in ("counts", "comparison"))
    lines = []
    for setting in SETTINGS:
        for layer in LAYERS:
            line = {"setting": setting, "layer": layer}
            own = counts[(counts["setting"] == setting) & (counts["layer"] == layer)]
            if not own.empty:
                line["mean count"] = f"{own['window'].mean():.1f}"
                line["at the data, to mean"] = _ratio(rows, setting, layer, "data", "window")
                line["at the data, to turned data"] = _ratio(rows, setting, layer, "data", "turned")
                line["on the rim, to mean"] = _ratio(rows, setting, layer, "rim", "window")
            if not compared.empty:
                line |= _agreement(compared, setting, layer)
            lines.append(line)
    return pd.DataFrame(lines).fillna("")


def _agreement(compared: pd.DataFrame, setting: str, layer: int) -> dict[str, str]:
    own = compared[(compared["setting"] == setting) & (compared["layer"] == layer)]
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
        "for each region of the earlier layers) are counted, too."
    )


def draw(rows: pd.DataFrame) -> Figure:
    """The paper's panels: the data, and a row of maps per setting."""
    figure, axes = new_figure(3, 4, (PAGE, 5.4), squeeze=False)
    maps = rows[rows["kind"] == "map"]
    star = rows[(rows["kind"] == "star")].drop_duplicates(["x", "y"])
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

    def all_layers(setting: str, above: str, below: str) -> list[Interval]:
        return [_ratio(rows, setting, layer, above, below) for layer in LAYERS]

    focus = {setting: all_layers(setting, "data", "turned") for setting in SETTINGS}
    rim = {setting: all_layers(setting, "rim", "window") for setting in SETTINGS}
    window = {setting: all_layers(setting, "data", "window") for setting in SETTINGS}
    counts = rows[rows["kind"] == "counts"].set_index(["setting", "layer"])
    means = counts["window"].groupby(level=[0, 1]).mean()
    through = counts.loc[[zero], "origin"].min()
    centred = all_layers(zero, "centred", "window")
    return [
        Claim(
            "Figure 3, (i)",
            "BN clearly focuses the spline partition on the data.",
            _decide([_sign(interval, 1) for interval in focus[norm]]),
            f"at layers 1, 7, 11 the count at the data is {_list(focus[norm])} times that at the "
            f"turned data, and {_list(window[norm])} times the window's mean.",
        ),
        Claim(
            "Figure 3, (ii)",
            "Random bias creates a random partition that is diffused over the entire input space.",
            _decide([_more_diffuse(rows, layer) for layer in LAYERS]),
            f"the count on the window's rim is {_list(rim[random])} of the mean (zero bias "
            f"{_list(rim[zero])}, BN {_list(rim[norm])}); but the window's mean count falls with "
            f"depth, {', '.join(f'{means[random, layer]:.1f}' for layer in LAYERS)}, as biases add "
            "up that do not depend on the input.",
        ),
        Claim(
            "Figure 3, (iii)",
            "Zero bias creates a (more or less) central arrangement that does not focus on the "
            "data.",
            _decide(
                [
                    int(through == counts["width"].iloc[0]),
                    *(-abs(_sign(interval, 1)) or 1 for interval in focus[zero]),
                ]
            ),
            f"at the origin {through:.0f} of {counts['width'].iloc[0]:.0f} units meet in every "
            f"layer; at the data there are {_list(focus[zero])} times as many as at the turned "
            "data. The star is off the origin: around the origin it would have "
            f"{_list(centred)} times the window's mean without any BN.",
        ),
    ]


def _sign(interval: Interval, value: float) -> int:
    """1 where the interval lies above ``value``, -1 below, 0 where it is open."""
    if interval.half_width is None or abs(interval.mean - value) <= interval.half_width:
        return 0
    return 1 if interval.mean > value else -1


def _decide(signs: Sequence[int]) -> str:
    """Confirmed where all signs are 1; not where one is -1."""
    if min(signs) < 0:
        return "not confirmed"
    return "confirmed" if min(signs) > 0 else "open"


def _more_diffuse(rows: pd.DataFrame, layer: int) -> int:
    """Whether random bias has more of its counts on the rim than both others, paired by seed."""
    counts = rows[(rows["kind"] == "counts") & (rows["layer"] == layer)]
    share = (counts["rim"] / counts["window"]).groupby([counts["setting"], counts["seed"]]).mean()
    zero, random, norm = (share[setting] for setting in SETTINGS)
    return min(_sign(mean_interval(list(random - other)), 0) for other in (zero, norm))


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
            f"{100 * small['local'].sum() / units:.0f}% of the exact partition's units, with a mean "
            f"absolute deviation of {100 * small['deviation'].sum() / units:.0f}% at a point. "
            f"Facets are another count: {norm['facets'].sum() / norm['units'].sum():.0f} for each "
            f"unit at layer {LAYERS[-1]} with BN, which neither the local map nor samples see"
        )
    return Claim(
        "Sect. 3.3, counting in 2D",
        "Sampling the ball counts the folded hyperplanes that pass through it.",
        "confirmed" if share > 0.9 else "not confirmed",
        evidence + ".",
    )


def _list(intervals: Sequence[Interval]) -> str:
    shown = ", ".join(format(interval).partition(" (")[0] for interval in intervals)
    return f"{shown} (n={intervals[0].n})"


PART = Experiment(
    "Figure 3",
    "Folded hyperplanes around the points of the plane",
    tasks,
    summarize,
    _caption,
    draw,
    claims=claims,
)
