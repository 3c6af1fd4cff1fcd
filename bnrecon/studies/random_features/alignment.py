"""Figure 4 (left, middle): permuting products of random matrices to fit too few features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from bnrecon.construction.alignment import complement
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import PAGE, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.studies.random_features.feature_matrices import FEATURES, feature_matrix, target_weight
from bnrecon.studies.random_features.permutation_search import (
    CHANNELS,
    DRAWS,
    SEARCHES,
    missing_features,
    permutation_errors,
)

__all__ = ["PART", "measure_alignment"]

# Hidden channels of the target W2 W1, and features missing of 2500. The paper's are the first two;
# it calls these targets low-rank, but dense ones have full rank there.
SIZES = ((100, 60), (300, 100), (25, 100), (10, 100))


def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
    """One task for each size of the hidden layer and seed."""
    channels = CHANNELS[scale]
    return [
        Task(
            f"hidden {hidden}, seed {seed}",
            measure_alignment,
            {
                "hidden": hidden,
                "missing": missing_features(of_2500, channels),
                "seed": seed,
                "channels": channels,
            },
        )
        for hidden, of_2500 in SIZES
        for seed in range(DRAWS[scale])
    ]


def measure_alignment(hidden: int, missing: int, seed: int, channels: int) -> pd.DataFrame:
    """Permute targets of root mean square 1 to fit n - ``missing`` features.

    Args:
        hidden: channels between the two factors of the target W2 W1.
        missing: how many features short of n.
        seed: of features and targets.
        channels: c0 = c2.

    Returns:
        One row for each distribution of features and of targets.
    """
    shape = LayerShape(channels, channels)
    width = shape.equations - missing
    rows = []
    for label, name in FEATURES.items():
        basis = complement(feature_matrix(name, shape, width, seed))
        for target_label, target_name in FEATURES.items():
            target = target_weight(target_name, channels, channels, seed, hidden)
            target = target * (target.numel() ** 0.5 / target.norm())
            row = {
                "features": label,
                "target": target_label,
                "hidden": hidden,
                "rank": int(torch.linalg.matrix_rank(target)),
                "c1": width,
                "channels": channels,
                "seed": seed,
                "complement_dimension": basis.shape[1],
            }
            rows.append(row | permutation_errors(basis, target, seed))
    return pd.DataFrame(rows)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each hidden size and distribution of features: means over targets and draws."""
    lines = []
    for (hidden, label), group in rows.groupby(["hidden", "features"], sort=False):
        own, others = group[group["target"] == label], group[group["target"] != label]
        reduction = 100 * (1 - group["greedy"] / group["unpermuted"].clip(lower=1e-12))
        line = {
            "hidden channels": hidden,
            "rank of targets": f"{group['rank'].min()} to {group['rank'].max()}",
            "width c1": int(group["c1"].iloc[0]),
            "features": label,
        }
        for search, title in SEARCHES.items():
            line[f"rmse, {title}"] = _over_draws(group, group[search])
        line |= {
            "reduction by the greedy permutation, %": _over_draws(group, reduction),
            "greedy, targets of the same distribution": _over_draws(own, own["greedy"]),
            "greedy, other targets": _over_draws(others, others["greedy"]),
        }
        lines.append(line)
    return pd.DataFrame(lines)


def _over_draws(rows: pd.DataFrame, values: pd.Series) -> Interval:
    """The interval over draws of a draw's mean over targets."""
    return mean_interval([float(one.mean()) for _, one in values.groupby(rows["seed"])])


def draw_figure(rows: pd.DataFrame) -> Figure:
    """The paper's colour-coded tables: mean errors, targets in columns, features in rows."""
    sizes = list(dict.fromkeys(rows["hidden"]))
    searches = ("unpermuted", "greedy")
    figure, grid = new_figure(
        len(searches), len(sizes), (PAGE, 3.8), sharex=True, sharey=True, squeeze=False
    )
    largest = float(rows.groupby(["hidden", "features", "target"])["unpermuted"].mean().max())
    for row, search in enumerate(searches):
        for axes, hidden in zip(grid[row], sizes, strict=True):
            part = rows[rows["hidden"] == hidden]
            image = _draw_table(axes, part, search, largest)
            if row == 0:
                axes.set_title(f"{hidden} hidden channels\nc1 = {part['c1'].iloc[0]}")
            if row == len(searches) - 1:
                axes.set_xlabel("target")
        grid[row][0].set_ylabel(f"{SEARCHES[search]}\nfeatures")
    figure.colorbar(image, ax=grid, shrink=0.6, label="root mean squared error")
    return figure


def _draw_table(axes: Axes, rows: pd.DataFrame, search: str, largest: float) -> AxesImage:
    names = list(FEATURES)
    table = rows.pivot_table(index="features", columns="target", values=search).loc[names, names]
    image = axes.imshow(table, cmap="viridis", vmin=0, vmax=largest)
    for (y, x), value in np.ndenumerate(table.to_numpy()):
        colour = "black" if value > 0.6 * largest else "white"
        text = f"{value:.3f}".removeprefix("0")
        axes.text(x, y, text, ha="center", va="center", fontsize=5, color=colour)
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    return image


PART = Experiment(
    where="Theorem 4.1, Figure 4 (left, middle)",
    title="Permuting products of two random matrices to fit too few features",
    caption=(
        "Root mean squared errors of targets of root mean square 1: means over targets of all six "
        "distributions, with 95% Student-t intervals over draws. "
        "Targets are products W2 W1 through the hidden channels. "
        "Those of ID cond and Ortho cond are sums of as many of their features as there are hidden "
        "channels; ID cond's consist of zeros and a few ones. "
        "The paper calls its targets, of 100 and 300 hidden channels, low-rank; "
        "dense ones of 50 x 50 have full rank. Targets of 10 and 25 hidden channels are low-rank."
    ),
    tasks=tasks,
    summary=summarize,
    draw=draw_figure,
    formats={f"rmse, {title}": ".4f" for title in SEARCHES.values()}
    | {
        "reduction by the greedy permutation, %": ".1f",
        "greedy, targets of the same distribution": ".4f",
        "greedy, other targets": ".4f",
    },
)
