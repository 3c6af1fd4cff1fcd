"""Theorem 2.2 for few output channels: the law holds only where c0 and c2 both grow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch

from bnrecon.features import spectrum
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import PAGE, Axes, Figure, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.parts import Decision, Decisions, only, part, sweep, table
from bnrecon.studies.random_features.averages import errorbar_by, interval_of
from bnrecon.studies.random_features.feature_matrices import ANY_WIDTH, COLOURS, normalized_matrix

NORMAL = "He normal"
# Values of c0 by c2; the last of each has n = c0 c2 = 1600 (smoke: 16 or 36).
LAPTOP = {1: [100, 400, 1600], 2: [50, 200, 800], 5: [20, 80, 320], 10: [10, 40, 160]}
LAPTOP |= {20: [20, 80], 40: [40]}
SHAPES = {"smoke": {1: [16, 36], 4: [4], 6: [6]}, "laptop": LAPTOP, "paper": LAPTOP}
SHADES = {1: "#9ecae1", 2: "#6baed6", 5: "#3182bd", 10: "#08519c"}  # by c2, of He normal's blue
OTHERS = (1, 5, 40)  # c2 of the other distributions, at the largest n
DRAWS = {"smoke": 2, "laptop": 3, "paper": 10}


def _settings(by_outputs: dict[int, list[int]]) -> list[tuple[str, int, int]]:
    """Each shape for He normal, then some of the largest n for other distributions."""
    shapes = [(outputs, inputs) for outputs, row in by_outputs.items() for inputs in row]
    largest = max(outputs * inputs for outputs, inputs in shapes)
    others = [shape for shape in shapes if shape[0] in OTHERS and shape[0] * shape[1] == largest]
    return [(n, *shape) for n in ANY_WIDTH for shape in (shapes if n == NORMAL else others)]


SETTINGS = {scale: _settings(by_outputs) for scale, by_outputs in SHAPES.items()}


def measure_distances(features: str, outputs: int, inputs: int, draws: int) -> pd.DataFrame:
    """One row per draw: M's distance from the law at c1 = n, fourth moment, block correlation.

    Features have the paper's names, ``outputs`` is c2 and ``inputs`` c0.
    """
    shape, rows = LayerShape(outputs, inputs), []
    for seed in range(draws):
        matrix = normalized_matrix(features, shape, shape.equations, seed)
        values = torch.linalg.svdvals(matrix).numpy()
        row = {"features": features, "outputs": outputs, "inputs": inputs, "n": shape.equations}
        row |= {"seed": seed, "distance": spectrum.distance(values, 1.0)}
        row |= {"fourth_moment": float((values**4).mean())}
        rows.append(row | {"block_correlation": block_correlation(matrix, outputs)})
    return pd.DataFrame(rows)


def block_correlation(matrix: torch.Tensor, outputs: int) -> float:
    """The mean correlation, over columns of M, of the squared norms of a column's c0 blocks.

    Appendix A.2 takes the blocks of c2 entries that share an input as independent: it would be 0. M
    is (c2 c0, c1), its rows in the order (output, input).
    """
    blocks = matrix.reshape(outputs, -1, matrix.shape[1]).square().sum(0)
    table = np.corrcoef(blocks.numpy())
    return float(table[~np.eye(len(table), dtype=bool)].mean())


def expected_fourth_moment(outputs: int, inputs: int) -> float:
    """E tr (MᵀM)² / c1 for normal weights at c1 = n: (1 + 2/c0)(1 + 2/c2) + 1 - 1/n.

    The law of λ = 1 has 2.

    >>> expected_fourth_moment(1, 10**9) > 3.99
    True
    """
    return (1 + 2 / inputs) * (1 + 2 / outputs) + 1 - 1 / (outputs * inputs)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per distribution and shape; derived values are for normal weights."""
    normal = rows["features"] == NORMAL
    moments = expected_fourth_moment(rows["outputs"], rows["inputs"])
    rows = rows.assign(expected=moments, derived=1 / (rows["outputs"] + 3))
    rows.loc[~normal, ["expected", "derived"]] = np.nan
    columns: dict[str, Any] = {
        "features": "features",
        "c2": "outputs",
        "c0": "inputs",
        "n": "n",
        "distance from the law": interval_of("distance"),
        "mean of s⁴ (law: 2)": interval_of("fourth_moment"),
        "expected": "expected",
        "correlation of blocks": interval_of("block_correlation"),
        "normal: 1/(c2 + 3)": "derived",
    }
    return table(rows, ["features", "outputs", "inputs"], False, **columns)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw distance over c2 at the largest n, and over n (normal weights, c2 fixed or c0 = c2)."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.6), sharey=True)
    largest = rows["n"].max()
    for label, group in rows[rows["n"] == largest].groupby("features", sort=False):
        _line(left, group, "outputs", COLOURS[label], label)
    normal = rows[rows["features"] == NORMAL]
    for outputs, colour in SHADES.items():
        group = normal[normal["outputs"] == outputs]
        if group["n"].nunique() > 1:
            _line(right, group, "n", colour, f"$c_2={outputs}$")
    _line(right, normal[normal["outputs"] == normal["inputs"]], "n", "black", "$c_2=c_0$")
    left.set(title=f"(a) $n=c_0c_2={largest}$", xlabel="output channels $c_2$")
    left.set_ylabel(f"distance from the law, {rows['seed'].nunique()} draws")
    right.set(title="(b) He normal", xlabel="equations $n=c_0c_2=c_1$")
    for axes, by in ((left, "outputs"), (right, "n")):
        axes.set(xscale="log", yscale="log")
        ticks = sorted(rows[by].unique())
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.tick_params(axis="x", which="minor", bottom=False)
    left.legend(loc="lower center")  # some distribution always has the largest n
    if right.get_legend_handles_labels()[0]:
        right.legend(loc="lower left", ncols=2)
    return figure


def _line(axes: Axes, rows: pd.DataFrame, by: str, colour: str, label: str) -> None:
    if len(rows):
        style = {"color": colour, "marker": "o", "capsize": 2, "label": label}
        errorbar_by(axes, rows, by, "distance", **style)


def decide(rows: pd.DataFrame) -> Decisions:
    """Does the law follow from c0 c2 → ∞ alone, and are the blocks of A.2 independent?"""
    normal = rows[rows["features"] == NORMAL]
    single = normal[normal["outputs"] == 1]
    square = normal[normal["outputs"] == normal["inputs"]]
    limit = [_limit(single, square)] if single["n"].nunique() > 1 else []
    return limit if normal.empty else [*limit, _blocks(normal)]


def _limit(single: pd.DataFrame, square: pd.DataFrame) -> Decision:
    """Needs a condition if the distance at c2 = 1 stays above half of that at the smallest n."""
    fixed, growing = (
        {int(n): mean_interval(list(group["distance"])) for n, group in normal.groupby("n")}
        for normal in (single, square)
    )
    first, *_, last = fixed.values()
    half = first.mean / 2
    stays = all(interval.ends[0] > half for interval in fixed.values())
    verdict = "confirmed" if last.ends[1] < half else "undecided"
    numbers = {"fixed": _listed(fixed), "growing": _listed(growing) or "not measured yet"}
    return "limit", "needs a condition" if stays else verdict, numbers


def _blocks(normal: pd.DataFrame) -> Decision:
    """False as stated if the correlation is above 0 at every c2, each at its largest n."""
    correlations = {
        (outputs, inputs): mean_interval(list(group["block_correlation"]))
        for (outputs, inputs), group in normal.groupby(["outputs", "inputs"])
    }
    at_largest = {outputs: one for (outputs, _), one in correlations.items()}  # inputs ascend
    differences = [
        interval - 1 / (outputs + 3)
        for (outputs, _), interval in correlations.items()
        if interval.half_width is not None
    ]
    wrong = all(interval.sign > 0 for interval in at_largest.values())
    fewest = min(at_largest)
    numbers = {"fewest": fewest, "largest": at_largest[fewest]}
    numbers |= {"outside": sum(one.sign != 0 for one in differences), "of": len(differences)}
    return "blocks", "false as stated" if wrong else "undecided", numbers


def _listed(distances: dict[int, Interval]) -> str:
    ends = sorted(distances)[:: max(1, len(distances) - 1)]
    return " and ".join(f"{distances[n]:.3f} at n = {n}" for n in ends)


NAME, OVER = "{features}, c2 = {outputs}, c0 = {inputs}", ("features", "outputs", "inputs")
TASKS = sweep(measure_distances, NAME, {OVER: SETTINGS}, {"draws": DRAWS})
DECIMALS = ("distance from the law", "mean of s⁴ (law: 2)", "expected", "correlation of blocks")
FORMATS = dict.fromkeys([*DECIMALS, "normal: 1/(c2 + 3)"], ".3f")
LARGEST = only("n", 36, 1600, drop=["c0", "n", *list(FORMATS)[1:]])
TYPICAL = only("features", "He normal", "ER sign")
EXCERPT = only("c2", 1, 6, 40)
MORE: Any = {"formats": FORMATS, "excerpt": lambda table: TYPICAL(EXCERPT(LARGEST(table)))}
PART = part(__file__, TASKS, summarize, draw, decide, **MORE)
