"""Figure 1: the partition of the plane layer by layer, without and with batch normalization."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from bnrecon.partition import Slice, partition
from bnrecon.reporting.figures import PAGE, PALETTE, Figure, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reporting.wording import span
from bnrecon.reproduction import intervals
from bnrecon.reproduction.intervals import GeometricMean, geometric_mean
from bnrecon.reproduction.parts import Decisions, only, part, sweep
from bnrecon.studies.bn_explained import planar

WIDTHS = (6, 6, 6, 6)
WIDE = (6, 12, 24, 48)  # K, the units per layer of the wider networks
OFFSETS = (0.0, 3.0)  # of the data's mean from the origin, in the data's standard deviations
SEEDS = {"smoke": 2, "laptop": 20, "paper": 200}
REACH = 30.0  # larger distances count as this
SHOWN = {"seed": 0, "offset": 3.0, "reach": 4.0}  # the network and the window of the picture
LAYER, SHAPE = ("offset", "layer"), ("offset", "depth", "width")  # of the two types of rows
SAME = (0.0, 1)  # offset and layer where mu = 0 and zero bias has BN's lines


def measure(seed: int) -> pd.DataFrame:
    """One row per offset of the data, setting and layer of a seed's networks.

    ``distance``: the median over the data of the distance to the layer's nearest folded line.
    ``lines``: how many of the layer's units have a folded line that meets the data's convex hull.
    ``regions``: how many regions of the layers up to this one meet the hull.
    ``window``: how many meet the surrounding square, ten times as wide as the data's standard
    deviation.
    """
    rows = []
    for offset in OFFSETS:
        points = planar.draw_clusters(seed, offset=offset)
        centre, hull = points.mean(0), planar.hull(points)
        for setting in planar.SETTINGS:
            layers = planar.draw_layers(WIDTHS, setting, points, seed)
            far = partition(layers, planar.square(centre, REACH)).folds
            near = partition(layers, hull).folds
            for layer in range(len(WIDTHS)):
                upto = layers[: layer + 1]
                gaps = planar.distances_to(points, far.of(layer).ends).clip(max=REACH)
                row = {"kind": "network", "seed": seed, "offset": offset, "setting": setting}
                row |= {"layer": layer + 1, "distance": float(np.median(gaps))}
                row |= {"lines": len(np.unique(near.of(layer).unit))}
                for name, plane in (("regions", hull), ("window", planar.square(centre, 5.0))):
                    row[name] = len(partition(upto, plane).regions)
                rows.append(row)
    return pd.DataFrame(rows)


def _window(offset: float) -> Slice:
    """The picture's window, around the midpoint of the origin and the data's mean."""
    return planar.square([offset / 8**0.5] * 2, SHOWN["reach"])


def picture(seed: int, offset: float) -> pd.DataFrame:
    """The folded lines of one seed's networks in the picture's window, and the data."""
    points = planar.draw_clusters(seed, offset=offset)
    rows = planar.point_rows(points)
    for setting in planar.SETTINGS:
        layers = planar.draw_layers(WIDTHS, setting, points, seed)
        rows += planar.line_rows(partition(layers, _window(offset)).folds, setting=setting)
    return pd.DataFrame(rows)


def measure_seed(seed: int) -> pd.DataFrame:
    """All rows of a seed: its networks, wide layers, and, if shown, its lines."""
    parts = [measure(seed), measure_widths(seed)]
    if seed == SHOWN["seed"]:
        parts.append(picture(seed, SHOWN["offset"]))
    return pd.concat(parts)


def measure_widths(seed: int) -> pd.DataFrame:
    """One row per offset of the data, depth, width and setting.

    ``regions``: how many meet the data's convex hull. ``lines``: how many of the last layer's units
    have a folded line that does.
    """
    rows = []
    cases = itertools.product(OFFSETS, (1, 2), WIDE, ("random bias", "BN"))
    for offset, depth, width, setting in cases:
        points = planar.draw_clusters(seed, offset=offset)
        layers = planar.draw_layers((width,) * depth, setting, points, seed)
        divided = partition(layers, planar.hull(points))
        row = {"kind": "wide", "seed": seed, "offset": offset, "setting": setting}
        row |= {"depth": depth, "width": width, "regions": len(divided.regions)}
        rows.append(row | {"lines": len(np.unique(divided.folds.of(depth - 1).unit))})
    return pd.DataFrame(rows)


def _paired(
    rows: pd.DataFrame, column: str, setting: str, kind: str = "network", by: Sequence[str] = LAYER
) -> pd.Series:
    """The ratio of BN's value to the setting's, by seed and by these columns."""
    table = rows[rows["kind"] == kind].pivot_table(column, [*by, "seed"], "setting")
    return table["BN"] / table[setting]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per offset of the data, setting and layer; then those of the wider layers."""
    networks, wide = (rows[rows["kind"] == kind] for kind in ("network", "wide"))
    ratios = _paired(rows, "regions", "random bias", "wide", SHAPE)
    lines = []
    by = ["offset", "setting", "layer"]
    for (offset, setting, layer), group in networks.groupby(by, sort=False):
        line = _line(group, f"{len(WIDTHS)} layers of {WIDTHS[0]}", layer)
        line["of those in the window"] = f"{group['regions'].sum() / group['window'].sum():.0%}"
        for column in ("distance", "regions") if setting != "BN" else ():
            ratio = geometric_mean(_paired(rows, column, setting)[offset, layer])
            line[f"{column}, BN to this"] = f"{ratio:.2f}"
        lines.append(line)
    by = ["offset", "depth", "width", "setting"]
    for (offset, depth, width, setting), group in wide.groupby(by, sort=False):
        line = _line(group, f"{depth:.0f} layer{'s' * (depth > 1)} of {width:.0f}", depth)
        if setting != "BN":
            line["regions, BN to this"] = f"{geometric_mean(ratios[offset, depth, width]):.2f}"
        lines.append(line)
    return pd.DataFrame(lines).fillna("")


def _line(group: pd.DataFrame, network: str, layer: float) -> dict[str, Any]:
    """The columns of all networks' lines."""
    line: dict[str, Any] = {"data's mean": f"{group['offset'].iloc[0]:.0f} from the origin"}
    line |= {"network": network, "setting": group["setting"].iloc[0], "layer": f"{layer:.0f}"}
    near = group["distance"].dropna().tolist()
    line["distance to the nearest line"] = mean_interval(near) if near else ""
    line["lines through the hull"] = mean_interval(group["lines"].tolist())
    return line | {"regions in the hull": mean_interval(group["regions"].tolist())}


def draw(rows: pd.DataFrame) -> Figure:
    """Draw a column per layer: random biases above, batch normalization below."""
    rows = planar.picture_rows(rows, "setting", "layer")
    figure, grid = new_figure(2, len(WIDTHS), (PAGE, 3.65))
    lines, points = (rows[rows["kind"] == kind] for kind in ("line", "point"))
    window = _window(SHOWN["offset"]).window
    for axes_row, setting in zip(grid, ("random bias", "BN"), strict=True):
        folds = lines[lines["setting"] == setting]
        for layer, axes in enumerate(axes_row, 1):
            of_layer = folds[folds["layer"] == layer]
            planar.draw_lines(axes, folds[folds["layer"] < layer], linewidths=0.5)
            planar.draw_lines(axes, of_layer, colors=PALETTE[0], linewidths=0.9)
            planar.draw_points(axes, points, window)
        axes_row[0].set_ylabel("with BN" if setting == "BN" else "without BN, random biases")
    for layer, axes in enumerate(grid[0], 1):
        axes.set_title(f"layer {layer}")
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Are the folded lines drawn towards the data, and are there more regions?"""
    networks = rows[rows["kind"] == "network"]
    fewest = networks.loc[networks["setting"] == "BN", "lines"].min()
    others = networks[networks["setting"] == "random bias"].groupby("offset")["lines"].mean()
    verdicts: dict[str, bool | str] = {"hyperplanes": bool(fewest == max(WIDTHS))}
    numbers: dict[str, Any] = {"fewest": fewest, "width": max(WIDTHS), "layers": len(WIDTHS)}
    numbers |= {"reach": REACH, "seeds": networks["seed"].nunique()}
    norm = networks[(networks["setting"] == "BN") & (networks["layer"] == len(WIDTHS))]
    regions = norm.groupby("offset")["regions"].apply(list).map(mean_interval)
    numbers["norm"] = " or ".join(dict.fromkeys(f"{one:.2f}" for one in regions))
    numbers |= {"widths": [WIDE[0], WIDE[-1]], "offset": OFFSETS[1]}
    numbers["others"] = ", ".join(
        f"{value:.1f} (data's mean {offset:.0f} from the origin)"
        for offset, value in others.items()
    )
    every = range(1, len(WIDTHS) + 1)
    for name, column, setting, layers in (
        ("distance", "distance", "random bias", every),
        ("regions", "regions", "random bias", (len(WIDTHS),)),
        ("zero bias", "distance", "zero bias", every),
    ):
        verdicts[name], numbers[name] = _compare(rows, column, setting, layers)
    for offset in OFFSETS:
        name = f"offset {offset:.0f}"
        verdicts[name], numbers[name] = _compare_widths(rows, offset)
    return verdicts, numbers


def _compare(
    rows: pd.DataFrame, column: str, setting: str, layers: Sequence[int]
) -> tuple[str, dict[str, Any]]:
    """Whether BN has smaller distances, or more regions, at these layers and every offset."""
    paired = _paired(rows, column, setting)
    ratios = [
        geometric_mean(group)
        for (offset, layer), group in paired.groupby(level=LAYER)
        if layer in layers and (setting != "zero bias" or (offset, layer) != SAME)
    ]
    smaller = column == "distance"
    logarithms = [-ratio.logarithm if smaller else ratio.logarithm for ratio in ratios]
    single = [intervals.decide([one]) for one in logarithms]
    return intervals.decide(logarithms), {
        "ratios": span([ratio.mean for ratio in ratios], ".2f"),
        "means": [ratio.mean for ratio in ratios],
        "cases": len(logarithms),
        "with": single.count("confirmed"),
    }


def _compare_widths(rows: pd.DataFrame, offset: float) -> tuple[str, dict[str, Any]]:
    """Does BN increase the number of a single layer's regions at this offset of the data?"""
    ratios = _paired(rows, "regions", "random bias", "wide", SHAPE)
    one, two = ({k: geometric_mean(ratios[offset, depth, k]) for k in WIDE} for depth in (1, 2))
    return intervals.decide(ratio.logarithm for ratio in one.values()), {
        "one": _list_widths(one),
        "widest": f"{one[WIDE[-1]]:.2f}",
        "wide": one[WIDE[-1]].mean,
        "two": _list_widths(two),
    }


def _list_widths(ratios: Mapping[int, GeometricMean]) -> str:
    """The widths at which BN has more or fewer regions, by the intervals."""
    widths: dict[str, list[str]] = {}
    words = {"confirmed": "more", "contradicted": "fewer", "undecided": "undecided"}
    for width, ratio in ratios.items():
        word = words[intervals.decide([ratio.logarithm])]
        widths.setdefault(word, []).append(str(width))
    return ", ".join(f"{word} at K = {', '.join(some)}" for word, some in widths.items())


TASKS = sweep(measure_seed, "seed {seed}", {"seed": SEEDS})
UNUSED = ["layer", "network", "lines through the hull", "of those in the window"]
EXCERPT = only("layer", f"{len(WIDTHS)}", drop=[*UNUSED, "distance to the nearest line"])
OTHERS = only("setting", "zero bias", "random bias")
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=lambda table: OTHERS(EXCERPT(table)))
