"""Figure 1: the partition of the plane layer by layer, without and with batch normalization."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.partition import Slice, partition
from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.intervals import decide, geometric_mean
from bnrecon.studies.bn_explained.plane_networks import (
    SETTINGS,
    distances,
    draw_clusters,
    draw_layers,
    hull,
    square,
)
from bnrecon.studies.bn_explained.plane_pictures import (
    draw_lines,
    draw_points,
    line_rows,
    picture_rows,
    point_rows,
)
from bnrecon.studies.bn_explained.wide_layers import (
    OFFSETS,
    measure_widths,
    place,
    summarize_widths,
    width_claims,
)

__all__ = ["PART", "measure", "picture"]

WIDTHS = (6, 6, 6, 6)
SEEDS = {"smoke": 2, "laptop": 20, "paper": 200}
REACH = 30.0  # distances beyond it count as this
SHOWN = {"seed": 0, "offset": 3.0, "reach": 4.0}  # the network and the window of the picture
SAME = (0.0, 1)  # offset and layer: there mu = 0, and zero bias has the lines of BN


def measure(seed: int) -> pd.DataFrame:
    """One row for each place of the data, setting and layer of the networks of a seed.

    ``distance``: the median over the data of the distance to the layer's nearest folded line.
    ``lines``: of how many of the layer's units the folded line meets the data's convex hull.
    ``regions``: of the layers up to this one, how many regions meet the hull.
    ``window``: how many meet the square around it that is ten times as wide as the data's
    standard deviation.
    """
    rows = []
    for offset in OFFSETS:
        points = draw_clusters(seed, offset=offset)
        centre = points.mean(0)
        for setting in SETTINGS:
            layers = draw_layers(WIDTHS, setting, points, seed)
            far = partition(layers, square(centre, REACH)).folds
            near = partition(layers, hull(points)).folds
            for layer in range(len(WIDTHS)):
                upto = layers[: layer + 1]
                found = distances(far.of(layer), points).clip(max=REACH)
                rows.append(
                    {
                        "kind": "network",
                        "seed": seed,
                        "offset": offset,
                        "setting": setting,
                        "layer": layer + 1,
                        "distance": float(np.median(found)),
                        "lines": len(np.unique(near.of(layer).unit)),
                        "regions": len(partition(upto, hull(points)).regions),
                        "window": len(partition(upto, square(centre, 5.0)).regions),
                    }
                )
    return pd.DataFrame(rows)


def _window(offset: float) -> Slice:
    """The picture's window, around the middle between the origin and the data's mean."""
    return square([offset / 8**0.5] * 2, SHOWN["reach"])


def picture(seed: int, offset: float) -> pd.DataFrame:
    """The folded lines of one seed's networks in the picture's window, and the data."""
    points = draw_clusters(seed, offset=offset)
    rows = point_rows(points)
    for setting in SETTINGS:
        layers = draw_layers(WIDTHS, setting, points, seed)
        rows += line_rows(partition(layers, _window(offset)).folds, setting=setting)
    return pd.DataFrame(rows)


def measure_seed(seed: int) -> pd.DataFrame:
    """All rows of a seed: its networks, wide layers, and the lines where they are shown."""
    parts = [measure(seed), measure_widths(seed)]
    if seed == SHOWN["seed"]:
        parts.append(picture(seed, SHOWN["offset"]))
    return pd.concat(parts)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per seed."""
    seeds = range(SEEDS[scale])
    return [Task(f"seed {seed}", measure_seed, {"seed": seed}) for seed in seeds]


def _paired(rows: pd.DataFrame, column: str, setting: str) -> pd.Series:
    """The ratio of BN's value to that of the setting, by place of the data, layer and seed."""
    table = rows[rows["kind"] == "network"].pivot_table(
        column, ["offset", "layer", "seed"], "setting"
    )
    return table["BN"] / table[setting]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per place of the data, setting and layer; then those of the wider layers."""
    lines = []
    networks = rows[rows["kind"] == "network"]
    for (offset, setting, layer), group in networks.groupby(
        ["offset", "setting", "layer"], sort=False
    ):
        distance, regions = (
            ""
            if setting == "BN"
            else f"{geometric_mean(_paired(rows, column, setting)[offset, layer]):.2f}"
            for column in ("distance", "regions")
        )
        lines.append(
            {
                "data's mean": f"{offset:.0f} from the origin",
                "network": f"{len(WIDTHS)} layers of {WIDTHS[0]}",
                "setting": setting,
                "layer": f"{layer:.0f}",
                "distance to the nearest line": mean_interval(group["distance"].tolist()),
                "lines through the hull": mean_interval(group["lines"].tolist()),
                "regions in the hull": mean_interval(group["regions"].tolist()),
                "of those in the window": f"{group['regions'].sum() / group['window'].sum():.0%}",
                "distance, BN to this": distance,
                "regions, BN to this": regions,
            }
        )
    return pd.concat([pd.DataFrame(lines), summarize_widths(rows)]).fillna("")


def _caption(rows: pd.DataFrame) -> str:
    seeds = rows.loc[rows["kind"] == "network", "seed"].nunique()
    return (
        "Leaky ReLUs on the plane; normal weights of variance 1/fan-in, the same in all settings. "
        "Zero bias: Eq. 1 with c = 0; random bias: c standard normal; BN: Eq. 2 with γ = 1, β = 0 "
        "and the statistics of the 50 points, three clusters with each coordinate of variance 1. "
        "Lines and regions are exact. Distance: median over the data, to the nearest folded line "
        f"of the layer, at most {REACH:.0f}. Lines: how many of the layer's units have one that "
        "meets the data's convex hull. Regions: those of all layers up to this one that meet the "
        "hull, and their share of those in the square of width 10 around the data. Means over "
        f"{seeds} seeds with 95% intervals; ratios are geometric means, paired by seed. Seeds, "
        "widths and places of the data are those of the first run, in which layers of "
        "other widths were counted at the first place only. Figure: the network of "
        f"{len(WIDTHS)} layers of {WIDTHS[0]} of the first seed, without BN (random bias) and with "
        "it; the data's mean is 3 from the origin, of the two places the one that random biases "
        "miss more clearly. Blue, the folded lines of this layer; grey, of earlier ones; black "
        "dots, the data."
    )


def draw(rows: pd.DataFrame) -> Figure:
    """A column for each layer; above random biases, below batch normalization."""
    rows = picture_rows(rows, "setting", "layer")
    figure, grid = new_figure(2, len(WIDTHS), (PAGE, 3.65))
    lines, points = (rows[rows["kind"] == kind] for kind in ("line", "point"))
    window = _window(SHOWN["offset"]).window
    for axes_row, setting in zip(grid, ("random bias", "BN"), strict=True):
        own = lines[lines["setting"] == setting]
        for layer, axes in enumerate(axes_row, 1):
            draw_lines(axes, own[own["layer"] < layer], linewidths=0.5)
            draw_lines(axes, own[own["layer"] == layer], colors=PALETTE[0], linewidths=0.9)
            draw_points(axes, points, window)
        axes_row[0].set_ylabel("with BN" if setting == "BN" else "without BN, random biases")
    for layer, axes in enumerate(grid[0], 1):
        axes.set_title(f"layer {layer}")
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Are the folded lines drawn towards the data, and are there more regions?"""
    return [
        _comparison(
            rows,
            "distance",
            "Figure 1",
            "With BN the folded hyperplanes are drawn towards the data (against random biases, "
            "at every layer).",
        ),
        _on_every_hyperplane(rows),
        _comparison(
            rows,
            "regions",
            "Figure 1",
            "BN increases the density of partition regions around the data (against random "
            "biases, the partition of the network).",
            layers=(len(WIDTHS),),
        ),
        *width_claims(rows),
        _comparison(
            rows,
            "distance",
            "Sect. 3.3",
            "BN focuses the partition on the data, in contrast to zero bias (every layer of these "
            "networks; Figure 3 has the section's own).",
            setting="zero bias",
        ),
    ]


def _on_every_hyperplane(rows: pd.DataFrame) -> Claim:
    networks, width = rows[rows["kind"] == "network"], max(WIDTHS)
    fewest = networks.loc[networks["setting"] == "BN", "lines"].min()
    others = networks[networks["setting"] == "random bias"].groupby("offset")["lines"].mean()
    return Claim(
        "Beyond Figure 1",
        "With BN every folded hyperplane of every layer meets the convex hull of the data (h has "
        "mean 0 over the data, and is continuous).",
        "confirmed" if fewest == width else "contradicted",
        f"the fewest in a layer are {fewest:.0f} of {width}; with random biases on average "
        + ", ".join(f"{value:.1f} ({place(offset)})" for offset, value in others.items())
        + ".",
    )


def _comparison(
    rows: pd.DataFrame,
    column: str,
    where: str,
    statement: str,
    *,
    setting: str = "random bias",
    layers: Sequence[int] = range(1, len(WIDTHS) + 1),
) -> Claim:
    """Whether BN's distances are smaller, or its regions more, at these layers and every place."""
    paired = _paired(rows, column, setting)
    found = [
        geometric_mean(group).logarithm
        for (offset, layer), group in paired.groupby(level=["offset", "layer"])
        if layer in layers and (setting != "zero bias" or (offset, layer) != SAME)
    ]
    if column == "distance":  # smaller is better
        found = [-one for one in found]
    verdicts = [decide([interval]) for interval in found]
    ratios = (
        ", ".join(f"{geometric_mean(group).mean:.2f}" for _, group in part.groupby("layer"))
        + f" ({place(offset)})"
        for offset, part in paired.groupby("offset")
    )
    left_out = (
        " Left out is layer 1 with the data's mean in the origin: there μ = 0, and both settings "
        "have the same lines."
        if setting == "zero bias"
        else ""
    )
    return Claim(
        where,
        statement,
        decide(found),
        f"{column}, BN to {setting}, layers 1 to {len(WIDTHS)}: {'; '.join(ratios)}; the paired "
        f"95% interval is on BN's side in {verdicts.count('confirmed')} of {len(found)} cases, on "
        f"the other in {verdicts.count('contradicted')}.{left_out}",
    )


PART = Experiment(
    "Figure 1",
    "Partition of the plane layer by layer, without and with BN",
    tasks,
    summarize,
    _caption,
    draw,
    claims=claims,
)
