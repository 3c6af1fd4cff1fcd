"""How many regions around the data one and two layers of the plane make (Sect. 1)."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd

from bnrecon.partition import partition
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.experiment import Claim
from bnrecon.reproduction.intervals import decide, geometric_mean
from bnrecon.studies.bn_explained.plane_networks import draw_clusters, draw_layers, hull

__all__ = ["OFFSETS", "measure_widths", "place", "summarize_widths", "width_claims"]

WIDTHS = (6, 12, 24, 48)  # K, the units of a layer
OFFSETS = (0.0, 3.0)  # of the data's mean from the origin, in the data's standard deviations


def measure_widths(seed: int) -> pd.DataFrame:
    """One row for each place of the data, depth, width and setting.

    ``regions``: how many meet the data's convex hull. ``lines``: of how many of the last layer's
    units the folded line does.
    """
    rows = []
    cases = itertools.product(OFFSETS, (1, 2), WIDTHS, ("random bias", "BN"))
    for offset, depth, width, setting in cases:
        points = draw_clusters(seed, offset=offset)
        found = partition(draw_layers((width,) * depth, setting, points, seed), hull(points))
        row = {"kind": "wide", "seed": seed, "offset": offset, "setting": setting}
        row |= {"depth": depth, "width": width, "regions": len(found.regions)}
        rows.append(row | {"lines": len(np.unique(found.folds.of(depth - 1).unit))})
    return pd.DataFrame(rows)


def place(offset: float) -> str:
    """Of the data's mean, in words."""
    return f"data's mean {offset:.0f} from the origin"


def _ratios(rows: pd.DataFrame) -> pd.Series:
    """BN's regions to those of random biases, by place of the data, depth, width and seed."""
    wide = rows[rows["kind"] == "wide"]
    table = wide.pivot_table("regions", ["offset", "depth", "width", "seed"], "setting")
    return table["BN"] / table["random bias"]


def summarize_widths(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per place of the data, depth, width and setting."""
    lines, ratios = [], _ratios(rows)
    keys = ["offset", "depth", "width", "setting"]
    for (offset, depth, width, setting), group in rows[rows["kind"] == "wide"].groupby(
        keys, sort=False
    ):
        lines.append(
            {
                "data's mean": f"{offset:.0f} from the origin",
                "network": f"{depth:.0f} layer{'s' * (depth > 1)} of {width:.0f}",
                "setting": setting,
                "layer": f"{depth:.0f}",
                "lines through the hull": mean_interval(group["lines"].tolist()),
                "regions in the hull": mean_interval(group["regions"].tolist()),
                "regions, BN to this": ""
                if setting == "BN"
                else f"{geometric_mean(ratios[offset, depth, width]):.2f}",
            }
        )
    return pd.DataFrame(lines)


def _enough(rows: pd.DataFrame) -> str:
    """From which width K on random lines make more regions in the hull than BN's 2 K.

    K lines make one region, one more for each line that meets the hull, and one for each crossing
    of two of them in it: 1 + p K + q K (K - 1) / 2 on average, with the shares p and q of lines and
    of pairs. This is above 2 K beyond the larger root.
    """
    width = rows["width"].max()
    widest = rows[rows["width"] == width]
    lines, regions = widest["lines"].mean(), widest["regions"].mean()
    p, q = lines / width, (regions - 1 - lines) / (width * (width - 1) / 2)
    middle = 2 - p + q / 2
    root = (middle + (middle**2 - 2 * q) ** 0.5) / q
    return (
        f"with p = {p:.2f} and q = {q:.2f} (K = {width:.0f}) more than 2 K from "
        f"K = {np.floor(root) + 1:.0f} on"
    )


def _word(found: Interval) -> str:
    """What an interval of logarithms says of BN's regions."""
    return {"confirmed": "more", "contradicted": "fewer", "open": "undecided"}[decide([found])]


def _counts(rows: pd.DataFrame, found: dict[int, Interval]) -> str:
    """Mean regions with BN and with random biases, and what the intervals by width say of them."""
    means = rows.pivot_table("regions", "width", "setting")
    return ", ".join(
        f"{means.loc[width, 'BN']:.0f} and {means.loc[width, 'random bias']:.0f} "
        f"(K = {width}, {_word(interval)})"
        for width, interval in found.items()
    )


def width_claims(rows: pd.DataFrame) -> list[Claim]:
    """For each place of the data: does BN increase the number of a single layer's regions?"""
    wide, ratios = rows[rows["kind"] == "wide"], _ratios(rows)
    claims = []
    for offset in OFFSETS:
        one, two = (
            {width: geometric_mean(ratios[offset, depth, width]).logarithm for width in WIDTHS}
            for depth in (1, 2)
        )
        here = wide[wide["offset"] == offset]
        single, double = (here[here["depth"] == depth] for depth in (1, 2))
        claims.append(
            Claim(
                "Sect. 1",
                "BN increases the number of partition regions around the training data: one "
                f"layer of K = {WIDTHS[0]} to {WIDTHS[-1]} units, {place(offset)}.",
                decide(one.values()),
                f"regions in the hull with BN and with random biases: {_counts(single, one)}. BN's "
                "lines all meet in the data's mean (Corollary 2) and make 2 K regions; K random "
                "lines make 1 + p K + q K (K - 1) / 2 on average, p and q the shares of lines and "
                "of crossings that lie in the hull: "
                f"{_enough(single[single['setting'] == 'random bias'])}. With a second layer of K "
                f"units: {_counts(double, two)}.",
            )
        )
    return claims
