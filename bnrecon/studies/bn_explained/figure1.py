"""Figure 1: the partition of the plane layer by layer, without and with batch normalization."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.partition import Slice, partition
from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
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

__all__ = ["PART", "measure", "measure_widths", "picture"]

WIDTHS = (6, 6, 6, 6)
WIDE = (6, 12, 24, 48)  # widths K of wider layers
SEEDS = {"smoke": 2, "laptop": 20, "paper": 200}
OFFSETS = (0.0, 3.0)  # of the data's mean from the origin, in the data's standard deviations
REACH = 30.0  # distances beyond it count as this
SHOWN = {"seed": 0, "offset": 3.0, "reach": 4.0}  # the network and the window of the picture


def _points(seed: int, offset: float) -> np.ndarray:
    return draw_clusters(seed) + offset / 2**0.5


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
        points = _points(seed, offset)
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


def measure_widths(seed: int) -> pd.DataFrame:
    """One row for each depth, width and setting: regions of wide layers that meet the hull."""
    points = draw_clusters(seed)
    rows = []
    for depth, width, setting in itertools.product((1, 2), WIDE, ("random bias", "BN")):
        layers = draw_layers((width,) * depth, setting, points, seed)
        row = {"kind": "wide", "seed": seed, "setting": setting, "depth": depth, "width": width}
        rows.append(row | {"regions": len(partition(layers, hull(points)).regions)})
    return pd.DataFrame(rows)


def _window(offset: float) -> Slice:
    """The picture's window, around the middle between the origin and the data's mean."""
    return square([offset / 8**0.5] * 2, SHOWN["reach"])


def picture(seed: int, offset: float) -> pd.DataFrame:
    """The folded lines of one seed's networks in the picture's window, and the data."""
    points = _points(seed, offset)
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
    """The logarithm of BN's value to that of the setting, by seed, place of the data and layer."""
    table = rows[rows["kind"] == "network"].pivot_table(
        column, ["offset", "layer", "seed"], "setting"
    )
    return np.log(table["BN"] / table[setting])


def _ratio(logarithms: pd.Series) -> str:
    """Geometric mean of ratios and its 95% interval."""
    found = mean_interval(logarithms.tolist())
    low, high = _bounds(found)
    return f"{np.exp(found.mean):.2f} ({np.exp(low):.2f} to {np.exp(high):.2f})"


def _bounds(found: Interval) -> tuple[float, float]:
    width = np.inf if found.half_width is None else found.half_width
    return found.mean - width, found.mean + width


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per place of the data, setting and layer."""
    lines = []
    networks = rows[rows["kind"] == "network"]
    for (offset, setting, layer), group in networks.groupby(
        ["offset", "setting", "layer"], sort=False
    ):
        line = {
            "data's mean": f"{offset:.0f} from the origin",
            "setting": setting,
            "layer": f"{layer:.0f}",
            "distance to the nearest line": mean_interval(group["distance"].tolist()),
            "lines through the hull, of 6": mean_interval(group["lines"].tolist()),
            "regions in the hull": mean_interval(group["regions"].tolist()),
            "of those in the window": f"{group['regions'].sum() / group['window'].sum():.0%}",
        }
        for column, title in (("distance", "distance, BN to this"), ("regions", "regions")):
            paired = (
                "" if setting == "BN" else _ratio(_paired(rows, column, setting)[offset, layer])
            )
            line[title] = paired
        lines.append(line)
    table = pd.DataFrame(lines)
    return table.rename(columns={"regions": "regions, BN to this"})


def _caption(rows: pd.DataFrame) -> str:
    seeds = rows.loc[rows["kind"] == "network", "seed"].nunique()
    return (
        f"Networks of {len(WIDTHS)} layers of {WIDTHS[0]} leaky ReLUs on the plane; normal weights "
        "of variance 1/fan-in, biases (top row, Eq. 1) standard normal; BN (Eq. 2, γ = 1, β = 0) "
        "has the same weights, and its statistics are those of the 50 points: three clusters, each "
        "coordinate of variance 1. Lines and regions are exact. Distance: median over the data, to "
        f"the nearest folded line of the layer, at most {REACH:.0f}. Regions: those of all layers "
        "up to this one that meet the data's convex hull, and their share of those in the square "
        f"of width 10 around the data. Means over {seeds} seeds with 95% intervals; ratios are "
        "geometric means, paired by seed. Figure: seed 0, the data's mean 3 from the origin; "
        "blue, the folded lines of this layer; grey, of earlier ones; black dots, the data."
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
        _wide_layers(rows),
        _comparison(
            rows,
            "distance",
            "Sect. 3.3",
            "BN focuses the partition on the data, in contrast to zero bias (at every layer).",
            setting="zero bias",
        ),
    ]


def _on_every_hyperplane(rows: pd.DataFrame) -> Claim:
    networks, width = rows[rows["kind"] == "network"], max(WIDTHS)
    fewest = networks.loc[networks["setting"] == "BN", "lines"].min()
    others = networks[networks["setting"] == "random bias"].groupby("offset")["lines"].mean()
    return Claim(
        "Figure 1",
        "With BN every folded hyperplane of every layer meets the convex hull of the data (h has "
        "mean 0 over the data, and is continuous).",
        "confirmed" if fewest == width else "not confirmed",
        f"the fewest in a layer are {fewest:.0f} of {width}; with random biases on average "
        + ", ".join(f"{value:.1f} ({_place(offset)})" for offset, value in others.items())
        + ".",
    )


def _place(offset: float) -> str:
    return f"data's mean {offset:.0f} from the origin"


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
    sign = -1 if column == "distance" else 1
    paired = sign * _paired(rows, column, setting)
    found = [
        _bounds(mean_interval(group.tolist()))
        for (_, layer), group in paired.groupby(level=["offset", "layer"])
        if layer in layers
    ]
    better = sum(low > 0 for low, _ in found)
    worse = sum(high < 1e-9 for _, high in found)  # or equal, as zero bias is at a mean of 0
    ratios = (
        ", ".join(f"{np.exp(sign * value):.2f}" for value in part.groupby("layer").mean())
        + f" ({_place(offset)})"
        for offset, part in paired.groupby("offset")
    )
    return Claim(
        where,
        statement,
        "confirmed" if better == len(found) else "not confirmed" if worse else "open",
        f"{column}, BN to {setting}, layers 1 to {len(WIDTHS)}: {'; '.join(ratios)}; the paired "
        f"95% interval is on BN's side in {better} of {len(found)} cases, at 1 or beyond it in "
        f"{worse}.",
    )


def _wide_layers(rows: pd.DataFrame) -> Claim:
    """BN's lines all meet in one point, so that K of them make no more than 2 K regions."""
    wide = rows[rows["kind"] == "wide"]
    table = wide.pivot_table("regions", ["depth", "width", "seed"], "setting")
    paired = np.log(table["BN"] / table["random bias"]).loc[1]
    found = [_bounds(mean_interval(group.tolist())) for _, group in paired.groupby("width")]
    fewer = any(high < 0 for _, high in found)
    means = table.groupby(["depth", "width"]).mean().round().astype(int)
    one, two = (
        "; ".join(f"{row['BN']} and {row['random bias']} (K = {int(width)})" for width, row in part)
        for part in (means.loc[depth].iterrows() for depth in (1, 2))
    )
    return Claim(
        "Sect. 1",
        "BN increases the number of partition regions around the training data: one layer of any "
        "width.",
        "not confirmed" if fewer else "confirmed" if min(found)[0] > 0 else "open",
        f"regions in the hull with BN and with random biases: {one}. BN's lines meet in the data's "
        "mean (Corollary 2) and make 2 K regions, K lines in general position up to "
        f"1 + K + K (K - 1) / 2. With a second layer of the same width: {two}.",
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
