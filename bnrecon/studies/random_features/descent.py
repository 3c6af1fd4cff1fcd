"""Sect. 2.1: the condition number of M peaks where there are as many features as equations."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from bnrecon.features import spectrum
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import PAGE, Axes, Figure, draw_legend, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction import intervals
from bnrecon.reproduction.parts import Decision, Decisions, only, part, read_text, sweep, table
from bnrecon.studies.random_features import averages
from bnrecon.studies.random_features.feature_matrices import (
    ANY_WIDTH,
    COLOURS,
    FEATURES,
    feature_matrix,
)

TEXT = read_text(__file__)
CHANNELS = {"smoke": (6, 4), "laptop": (20, 10, 5), "paper": (50, 20, 10)}
IN_FIGURE_2 = CHANNELS["paper"][0]  # the largest of the paper's panels
DRAWS = {"smoke": 2, "laptop": 10, "paper": 10}
OFFSETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # |c1/n - 1|, on both sides
OVERSAMPLING = (*(1 - offset for offset in OFFSETS), 1, *(1 + offset for offset in OFFSETS), 2, 3)
PRINTED = (0.5, 0.95, 1.0, 1.05, 1.5, 3.0)  # oversampling in the table


def measure_descent(features: str, channels: int, draws: int) -> pd.DataFrame:
    """Condition numbers of M (n, c1) for widths c1 around n: one row per width and draw."""
    shape = LayerShape(channels, channels)
    n = shape.equations
    rows = []
    widths, name = sorted({round(factor * n) for factor in OVERSAMPLING}), FEATURES[features]
    for width, seed in itertools.product(widths, range(draws)):
        row = {"features": features, "channels": channels, "c1": width}
        row |= {"oversampling": width / n, "seed": seed}
        rows.append(row | orthogonality(feature_matrix(name, shape, width, seed)))
    return pd.DataFrame(rows)


def orthogonality(matrix: torch.Tensor) -> dict[str, float]:
    """How far the columns of M are from orthonormal.

    The paper says that orthogonal weights make "the columns of M orthogonal" (Sect. 2.1).

    Returns:
        The condition number over nonzero singular values, and the largest off-diagonal entry of
        MᵀM over the mean diagonal entry.
    """
    values = torch.linalg.svdvals(matrix)
    nonzero = values[values > 1e-12 * values[0]]
    gram = matrix.T @ matrix
    diagonal = gram.diagonal().mean()
    largest = (gram - torch.diag(gram.diagonal())).abs().max()
    condition = float(nonzero[0] / nonzero[-1])
    return {"condition_number": condition, "largest_off_diagonal": float(largest / diagonal)}


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per distribution and size: condition numbers, and MᵀM at c1 = n."""

    def condition(group: pd.DataFrame, oversampling: float) -> str:
        tolerance = 0.51 / group["channels"].iloc[0] ** 2
        near = group[(group["oversampling"] - oversampling).abs() < tolerance]
        return f"{intervals.geometric_mean(near['condition_number']):.3g}" if len(near) else ""

    columns: dict[str, Any] = {"features": "features", "c0 = c2": "channels"}
    for printed in PRINTED:
        columns[f"κ, c1/n = {printed:.3g}"] = partial(condition, oversampling=printed)
    columns["largest off-diagonal of MᵀM"] = lambda group: averages.interval_of(
        "largest_off_diagonal"
    )(group[group["c1"] == group["channels"] ** 2])
    columns["draws"] = lambda group: group["seed"].nunique()
    return table(rows, ["features", "channels"], False, **columns)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw κ over |c1/n - 1| at the largest size, fewer features on the left, more on the right."""
    channels = rows["channels"].max()
    rows = rows[rows["channels"] == channels]
    figure, panels = new_figure(1, 2, (PAGE, 2.9), sharey=True)
    for sign, axes in zip((-1, 1), panels, strict=True):
        _draw_side(axes, rows, sign)
    left, right = panels
    draw_legend(figure, len(ANY_WIDTH) + 2, "lower")
    left.invert_xaxis()
    left.set(title=f"(a) fewer features than $n={channels**2}$", xlabel="$1-c_1/n$")
    right.set(title=f"(b) more, $c_0=c_2={channels}$", xlabel="$c_1/n-1$")
    left.set_ylabel(f"condition number κ(M), {rows['seed'].nunique()} draws")
    return figure


def _draw_side(axes: Axes, rows: pd.DataFrame, sign: int) -> None:
    """Draw one side's geometric means, with the range of draws shaded and c1 = n dashed."""
    for label, group in rows.groupby("features", sort=False):
        offset = sign * (group["oversampling"] - 1)
        numbers = group.groupby(offset.round(6))["condition_number"]
        means = numbers.agg(lambda values: intervals.geometric_mean(values).mean)
        side = means.index > 0
        colour = COLOURS[label]
        axes.plot(means.index[side], means[side], marker="o", color=colour, label=label)
        low, high = numbers.min()[side], numbers.max()[side]
        axes.fill_between(means.index[side], low, high, color=colour, alpha=0.15, linewidth=0)
        axes.axhline(means.loc[0.0], color=colour, linestyle="--", linewidth=0.8)
    axes.plot([], [], color="0.4", linestyle="--", linewidth=0.8, label="at $c_1=n$")
    offsets = np.geomspace(0.008, 0.5 if sign < 0 else 2, 200)
    law = [spectrum.condition_of_aspect(1 + sign * offset) for offset in offsets]
    axes.plot(offsets, law, color="black", label="law of Theorem 2.2")
    axes.set(xscale="log", yscale="log")
    ticks = [tick for tick in (0.01, 0.1, 0.5, 2) if sign > 0 or tick < 1]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide Sect. 2.1's statements about condition numbers and orthogonal weights."""
    sizes = sorted(rows["channels"].unique())
    largest = rows[rows["channels"] == sizes[-1]]
    decisions = [_peak(largest)]
    square = rows[rows["c1"] == rows["channels"] ** 2]
    both = square.groupby("features")["channels"].nunique() == len(sizes)
    if len(sizes) > 1 and both.any():
        decisions.append(_growth(square[square["features"].isin(both[both].index)]))
    orthogonal = square[(square["features"] == "orthogonal") & (square["channels"] == sizes[-1])]
    return [*decisions, _columns(orthogonal)] if len(orthogonal) else decisions


def _peak(rows: pd.DataFrame) -> Decision:
    """Confirmed if log κ at c1 = n is surely larger than at every other width, by seed."""
    channels, peaks = rows["channels"].iloc[0], []
    rows = rows.assign(log=np.log10(rows["condition_number"]))
    for _, group in rows.groupby("features"):
        by_width = dict(list(group.groupby("c1")))
        top = by_width.pop(channels**2)
        gaps = [intervals.paired_difference(top, other, "log") for other in by_width.values()]
        peaks.append(intervals.count_signs(gaps)[1] == len(gaps))
    numbers = {"channels": channels, "comparisons": rows["c1"].nunique() - 1}
    numbers |= {"peaks": sum(peaks), "of": len(peaks)}
    return "peak", "confirmed" if all(peaks) else "undecided", numbers


def _growth(square: pd.DataFrame) -> Decision:
    """Confirmed if the trend of log κ over log c0 is upward for every distribution."""
    powers = averages.powers_by_features(square, "condition_number")
    channels = sorted(square["channels"].unique())
    already = TEXT.sentence("already", channels=channels[-1], printed=IN_FIGURE_2)
    numbers = {
        "already": f" {already}" if channels[-1] < IN_FIGURE_2 else "",
        "sizes": ", ".join(map(str, channels)),
        "powers": ", ".join(f"{power} ({label})" for label, power in powers.items()),
    }
    return "growth", intervals.decide(powers.values()), numbers | averages.signs(powers.values())


def _columns(square: pd.DataFrame) -> Decision:
    correlated = square["largest_off_diagonal"].min() > 1e-3
    numbers = {
        "largest": mean_interval(list(square["largest_off_diagonal"])),
        "channels": square["channels"].iloc[0],
    }
    return "columns", "false as stated" if correlated else "confirmed", numbers


OVER = {"channels": CHANNELS, "features": ANY_WIDTH}
TASKS = sweep(measure_descent, "{features}, {channels}", OVER, {"draws": DRAWS})
DROPPED = ["draws", "c0 = c2", *(f"κ, c1/n = {ratio:g}" for ratio in (0.95, 1.05, 3))]
DROPPED += ["largest off-diagonal of MᵀM"]
EXCERPT = only("c0 = c2", *(sizes[0] for sizes in CHANNELS.values()), drop=DROPPED)  # the largest
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=EXCERPT)
