"""Figure 2: mu_2 translates a unit's hyperplane, sigma_1 folds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from bnrecon.partition import partition
from bnrecon.reporting.figures import PAGE, new_figure
from bnrecon.reproduction.experiment import Task
from bnrecon.reproduction.texts import Decisions, part
from bnrecon.studies.bn_explained.plane_networks import draw_clusters, draw_layers, square
from bnrecon.studies.bn_explained.plane_pictures import (
    draw_lines,
    draw_points,
    line_rows,
    picture_rows,
    point_rows,
)
from bnrecon.studies.bn_explained.translation_and_folding import (
    REACH,
    SHIFTS,
    TOLERANCE,
    UNIT,
    WIDTHS,
    adjusted,
    check,
    feature_slice,
    folded_line,
    own_line,
)

SEEDS = {"smoke": 2, "laptop": 20, "paper": 100}
SHOWN = 3  # the network of the picture: of the first four, the one with the clearest folds
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of sigma_1,i


def picture(seed: int) -> pd.DataFrame:
    """The lines of the three panels and the data; the unit i of panel c has the largest |w_2,k|."""
    points = draw_clusters(seed)
    layers = draw_layers(WIDTHS, "BN", points, seed)
    plane, own = square((0.0, 0.0), REACH), feature_slice(layers, points)
    deviation = float(layers.get_buffer("1.1.running_var")[UNIT]) ** 0.5
    unit = int(layers.get_parameter("1.0.weight")[UNIT].abs().argmax())
    with torch.no_grad():
        features = own.coordinates(layers[0](torch.from_numpy(points)))
    first = partition(layers, plane).folds.of(0)
    rows = point_rows(features, panel="a")
    for panel in ("b", "c"):
        rows += point_rows(points, panel=panel) + line_rows(first, panel=panel, role="layer 1")
    rows += line_rows(first.of(0, unit), panel="c", role="varied")
    for shift in SHIFTS:
        moved = adjusted(layers, shift=shift * deviation)
        rows += line_rows(own_line(moved, own), panel="a", role="unit", value=shift)
        rows += line_rows(folded_line(moved, plane), panel="b", role="unit", value=shift)
    for factor in FACTORS:
        one = np.where(np.arange(WIDTHS[0]) == unit, factor, 1.0)
        folded = folded_line(adjusted(layers, sigma1=one), plane)
        rows += line_rows(folded, panel="c", role="unit", value=factor)
    return pd.DataFrame(rows)


def measure_seed(seed: int) -> pd.DataFrame:
    """The checks of a seed's network, and of the seed that is shown the lines."""
    checked = check(seed)
    return pd.concat([checked, picture(seed)]) if seed == SHOWN else checked


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per seed, first of the seed that is shown."""
    seeds = sorted({*range(SEEDS[scale]), SHOWN}, key=lambda seed: (seed != SHOWN, seed))
    return [Task(f"seed {seed}", measure_seed, {"seed": seed}) for seed in seeds]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per statement."""
    checked = rows[rows["kind"] == "network"]
    largest, total = checked.max(numeric_only=True), checked.sum(numeric_only=True)
    pairs, folds = f"{total['folded_pairs']:.0f} pairs of facets", "all folds"
    regions = f"{total['turned']:.0f} of {total['regions']:.0f} regions"
    lines = [
        ("μ_2,k", "direction of the hyperplane in a slice of layer 2's inputs", "own_turned"),
        ("μ_2,k", "its distance from where Eq. 5 puts it", "own_gap"),
        ("μ_2,k", f"direction of a facet within a region of layer 1, {pairs}", "folded_turned"),
        ("μ_2,k", f"distance of {folds} from layer 1's hyperplanes", "off_layer1"),
        ("σ_1, random factors", "layer 1's hyperplanes", "layer1_moved"),
        ("σ_1, random factors", f"distance of {folds} from them", "off_layer1_sigma"),
        (
            "σ_1,i, times 4",
            f"{total['pivots']:.0f} points where the line meets the hyperplane of unit i",
            "pivots_moved",
        ),
        ("σ_1, all times 2", "the line, to that of 2 μ_2,k", "common"),
        ("σ_2, times 3", "layer 2's folded hyperplanes", "own_sigma"),
    ]
    table = [
        {"varied": varied, "what": what, "largest change or error": f"{largest[column]:.0e}"}
        for varied, what, column in lines
    ]
    turn = f"{checked['median_turn'].median():.2f}, in {regions}"
    what = "direction of a facet within a region of layer 1, median"
    row = {"varied": "σ_1, random factors", "what": what, "largest change or error": turn}
    return pd.DataFrame([*table[:5], row, *table[5:]])


def fill_caption(rows: pd.DataFrame) -> dict[str, Any]:
    """What the caption names."""
    networks = int((rows["kind"] == "network").sum())
    return {"networks": networks, "width": WIDTHS[0], "seed": SHOWN}


def draw(rows: pd.DataFrame) -> Figure:
    """The paper's three panels."""
    import matplotlib

    rows = picture_rows(rows, "panel", "role", "value")
    figure, grid = new_figure(1, 3, (PAGE, 2.95))
    titles = ("(a) layer 2's input space", "(b) input space", "(c) input space")
    shifted, scaled = r"BN's $\mu_{2,k}$ plus … $\sigma_{2,k}$", r"BN's $\sigma_{1,i}$ times …"
    window = square((0.0, 0.0), REACH).window
    for axes, panel, title in zip(grid, "abc", titles, strict=True):
        part = rows[rows["panel"] == panel]
        draw_lines(axes, part[part["role"] == "layer 1"], linewidths=0.5)
        draw_lines(axes, part[part["role"] == "varied"], colors="black", linestyles="--")
        values = FACTORS if panel == "c" else SHIFTS
        for value, share in zip(values, np.linspace(0, 0.85, len(values)), strict=True):
            own = part[(part["role"] == "unit") & (part["value"] == value)]
            style = {"colors": [matplotlib.colormaps["viridis"](share)], "label": f"{value:g}"}
            is_measured = value == (1.0 if panel == "c" else 0.0)
            draw_lines(axes, own, linewidths=1.8 if is_measured else 1.0, **style)
        draw_points(axes, part[part["kind"] == "point"], window)
        axes.set_title(title)
        axes.legend(
            title=scaled if panel == "c" else shifted,
            title_fontsize=7,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.01),
            ncols=len(values),
            handlelength=1.0,
            columnspacing=0.9,
        )
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """What the caption and Appendix C say of mu and sigma."""
    checked = rows[rows["kind"] == "network"]
    largest, total = checked.max(numeric_only=True), checked.sum(numeric_only=True)

    def exact(*columns: str) -> bool:
        return bool((largest[list(columns)] < TOLERANCE).all())

    all_turn = bool(total["turned"] == total["regions"])
    return {
        "Figure 2(a), (b)": exact("own_turned", "own_gap", "folded_turned", "off_layer1"),
        "Figure 2(c)": exact("off_layer1_sigma", "pivots_moved") and all_turn,
        "Appendix C": exact("layer1_moved", "own_sigma"),
    }, {"largest": largest, "total": total, "median": checked[["speeds", "median_turn"]].median()}


PART = part(__file__, tasks, summarize, draw, decide, numbers=fill_caption)
