"""Sect. 2.1: the condition number of M peaks where there are as many features as equations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.features import spectrum
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import PAGE, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.intervals import count_signs, decide, geometric_mean
from bnrecon.studies.random_features.averages import trend, welch_interval
from bnrecon.studies.random_features.feature_matrices import (
    ANY_WIDTH,
    COLOURS,
    FEATURES,
    feature_matrix,
)

__all__ = ["PART", "measure_descent", "orthogonality"]

CHANNELS = {"smoke": (4, 6), "laptop": (5, 10, 20), "paper": (10, 20, 50)}
IN_FIGURE_2 = CHANNELS["paper"][-1]  # the largest of the paper's panels
DRAWS = {"smoke": 2, "laptop": 10, "paper": 10}
OFFSETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # |c1/n - 1|, on both sides
OVERSAMPLING = (*(1 - offset for offset in OFFSETS), 1, *(1 + offset for offset in OFFSETS), 2, 3)
PRINTED = (0.5, 0.95, 1.0, 1.05, 1.5, 3.0)  # oversampling in the table


def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
    """One task for each distribution whose width can be chosen, and size."""
    return [
        Task(
            f"{label}, {channels}",
            measure_descent,
            {"features": label, "channels": channels, "draws": DRAWS[scale]},
        )
        for channels in reversed(CHANNELS[scale])
        for label in ANY_WIDTH
    ]


def measure_descent(features: str, channels: int, draws: int) -> pd.DataFrame:
    """Condition numbers of M (n, c1) for widths c1 around n: one row for each width and draw."""
    shape = LayerShape(channels, channels)
    n = shape.equations
    rows = []
    for width in sorted({round(factor * n) for factor in OVERSAMPLING}):
        for seed in range(draws):
            matrix = feature_matrix(FEATURES[features], shape, width, seed)
            row = {
                "features": features,
                "channels": channels,
                "c1": width,
                "oversampling": width / n,
                "seed": seed,
            }
            rows.append(row | orthogonality(matrix))
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
    return {
        "condition_number": float(nonzero[0] / nonzero[-1]),
        "largest_off_diagonal": float(largest / diagonal),
    }


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each distribution and size: condition numbers, and MᵀM at c1 = n."""
    lines = []
    for (label, channels), group in rows.groupby(["features", "channels"], sort=False):
        line: dict[str, object] = {"features": label, "c0 = c2": int(channels)}
        for printed in PRINTED:
            part = group[(group["oversampling"] - printed).abs() < 0.51 / channels**2]
            numbers = part["condition_number"]
            line[_heading(printed)] = f"{geometric_mean(numbers):.3g}" if len(numbers) else ""
        square = group[group["c1"] == channels**2]
        line["largest off-diagonal of MᵀM"] = mean_interval(list(square["largest_off_diagonal"]))
        lines.append(line | {"draws": group["seed"].nunique()})
    return pd.DataFrame(lines)


def _heading(oversampling: float) -> str:
    return f"κ, c1/n = {oversampling:.3g}"


def draw_figure(rows: pd.DataFrame) -> Figure:
    """κ over |c1/n - 1| of the largest size, fewer features to the left and more to the right."""
    channels = rows["channels"].max()
    rows = rows[rows["channels"] == channels]
    figure, panels = new_figure(1, 2, (PAGE, 2.9), sharey=True)
    for sign, axes in zip((-1, 1), panels, strict=True):
        _draw_side(axes, rows, sign)
    left, right = panels
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    left.invert_xaxis()
    left.set_title(f"(a) fewer features than $n={channels**2}$")
    right.set_title(f"(b) more, $c_0=c_2={channels}$")
    left.set_xlabel("$1-c_1/n$")
    right.set_xlabel("$c_1/n-1$")
    left.set_ylabel(f"condition number κ(M), {rows['seed'].nunique()} draws")
    return figure


def _draw_side(axes: Axes, rows: pd.DataFrame, sign: int) -> None:
    """Geometric means of one side; the range of draws is shaded, c1 = n a dashed line."""
    for label, group in rows.groupby("features", sort=False):
        offset = sign * (group["oversampling"] - 1)
        numbers = group.groupby(offset.round(6))["condition_number"]
        means = numbers.agg(lambda values: geometric_mean(values).mean)
        side = means.index > 0
        colour = COLOURS[label]
        axes.plot(means.index[side], means[side], marker="o", color=colour, label=label)
        axes.fill_between(
            means.index[side],
            numbers.min()[side],
            numbers.max()[side],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
        axes.axhline(means.loc[0.0], color=colour, linestyle="--", linewidth=0.8)
    axes.plot([], [], color="0.4", linestyle="--", linewidth=0.8, label="at $c_1=n$")
    offsets = np.geomspace(0.008, 0.5 if sign < 0 else 2, 200)
    law = [spectrum.condition_of_aspect(1 + sign * offset) for offset in offsets]
    axes.plot(offsets, law, color="black", label="law of Theorem 2.2")
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = [tick for tick in (0.01, 0.1, 0.5, 2) if sign > 0 or tick < 1]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def claims(rows: pd.DataFrame) -> list[Claim]:
    """The statements of Sect. 2.1 about condition numbers and orthogonal weights."""
    sizes = sorted(rows["channels"].unique())
    found = [_peak(rows[rows["channels"] == sizes[-1]])]
    square = rows[rows["c1"] == rows["channels"] ** 2]
    both = square.groupby("features")["channels"].nunique() == len(sizes)
    if len(sizes) > 1 and both.any():
        found.append(_growth(square[square["features"].isin(both[both].index)]))
    orthogonal = square[(square["features"] == "orthogonal") & (square["channels"] == sizes[-1])]
    return [*found, _columns(orthogonal)] if len(orthogonal) else found


def _peak(rows: pd.DataFrame) -> Claim:
    """Confirmed where log κ at c1 = n is surely larger than at every other width."""
    peaks, evidence = [], []
    for label, group in rows.groupby("features", sort=False):
        found = {width: np.log10(part["condition_number"]) for width, part in group.groupby("c1")}
        top = found.pop(group["channels"].iloc[0] ** 2)
        peaks.append(all(welch_interval(top, other)[0] > 0 for other in found.values()))
        rival = max(float(other.mean()) for other in found.values())
        evidence.append(f"{label} {10 ** top.mean():.3g}, elsewhere at most {10**rival:.3g}")
    return Claim(
        "Sect. 2.1, double descent",
        "The condition number peaks at the interpolation threshold c1 = n; more or fewer features "
        "make it smaller.",
        "confirmed" if all(peaks) else "open",
        f"geometric means at c1 = n, c0 = c2 = {rows['channels'].iloc[0]}: {'; '.join(evidence)}. "
        "Confirmed: the 95% intervals (Welch) of the differences of log κ are above 0, "
        f"{rows['c1'].nunique() - 1} comparisons for each.",
    )


def _growth(square: pd.DataFrame) -> Claim:
    """Confirmed where the trend of log κ over log c0 is upwards for every distribution."""
    trends = {
        label: trend(list(np.log10(group["channels"])), list(np.log10(group["condition_number"])))
        for label, group in square.groupby("features", sort=False)
    }
    _, grows = count_signs(trends.values())
    channels = sorted(square["channels"].unique())
    sizes = ", ".join(map(str, channels))
    below = (
        f" up to c0 = c2 = {channels[-1]} already (Figure 2 goes on to {IN_FIGURE_2}, where the "
        "paper's sentence is decided)"
    )
    return Claim(
        "Sect. 2.1, size",
        "The condition number increases with the size"
        f"{below if channels[-1] < IN_FIGURE_2 else ''}.",
        decide(trends.values()),
        f"the exponent p of κ ~ c0^p at c1 = n, c0 = c2 = {sizes}: "
        f"{', '.join(f'{label} {found}' for label, found in trends.items())}; above 0 for "
        f"{grows} of {len(trends)} distributions. ± is the half-width of the 95% Student-t "
        "interval of the slope of log κ over log c0.",
    )


def _columns(square: pd.DataFrame) -> Claim:
    largest = mean_interval(list(square["largest_off_diagonal"]))
    return Claim(
        "Sect. 2.1, orthogonal weights",
        '"While the columns of M are orthogonal, the rows are not."',
        "false as stated" if square["largest_off_diagonal"].min() > 1e-3 else "confirmed",
        f"the largest off-diagonal entry of MᵀM is {largest:.2f} of the diagonal at c0 = c2 = "
        f"{square['channels'].iloc[0]}, c1 = n: they are uncorrelated, not orthogonal. A "
        "square M with orthonormal columns or rows has κ = 1; this one has "
        f"{geometric_mean(square['condition_number']).mean:.3g}.",
    )


PART = Experiment(
    where="Sect. 2.1",
    title="Double descent of the condition number",
    caption=(
        "Condition numbers κ are taken over nonzero singular values; shown are geometric means "
        "over draws with the 95% Student-t intervals of the mean logarithm (low to high). The "
        "figure has the largest size; shaded is the range of draws, dashed "
        "the mean at c1 = n, black the law's (1 + sqrt(c1/n)) / |1 - sqrt(c1/n)|, which is "
        "infinite at c1 = n. It depends on c1/n alone: the excess of features has to grow with n. "
        "The largest off-diagonal entry of MᵀM is relative to the mean diagonal entry, at c1 = n. "
        "The paper says that orthogonal weights make the columns of M orthogonal. "
        "They do not: (MᵀM)_kl = (BᵀB)_kl (A Aᵀ)_kl is zero only if one of the two factors is. "
        "For ID cond and Ortho cond one always is. "
        "Random orthogonal weights have more features than channels, c1 > c0 and c1 > c2, so that "
        "neither all rows of A nor all columns of B can be orthogonal to each other "
        "(docs/errata.md, entry 9). "
        "± is the half-width of the 95% Student-t interval over n draws."
    ),
    tasks=tasks,
    summary=summarize,
    draw=draw_figure,
    claims=claims,
)
