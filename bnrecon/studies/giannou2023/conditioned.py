"""Beyond the paper.

Does SGD on the scales reach the construction where the features are well conditioned?
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.studies.giannou2023.comparison import format_errors
from bnrecon.studies.giannou2023.variants import (
    FEATURES,
    VARIANT_SIDES,
    compare_features,
    draw_variants,
)

__all__ = ["PART", "draw", "summarize"]

CAPTION = (
    "SGD on scales and shifts alone, the frozen weights drawn as random as in Figure 4, or so that "
    "the system of Theorem 1 is perfectly conditioned: ID cond has M = I (a scale is a weight), "
    "Ortho cond an orthogonal M. The dense network is trained by SGD on its weights. Condition: of "
    "M, mean over runs. Samples, training and errors as in Figure 4, left."
)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per teacher width."""
    return [
        Task(f"d = {side}", compare_features, {"side": side, "scale": scale})
        for side in VARIANT_SIDES[scale]
    ]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per teacher width and kind of features."""
    lines = []
    for (side, kind), group in rows.groupby(["side", "features"], sort=False):
        condition = group["condition"].mean()
        lines.append(
            {
                "teacher width d": side,
                "trained": FEATURES[kind],
                "condition": "" if pd.isna(condition) else f"{condition:.2g}",
                "test MSE": format_errors(group["mse"]),
                "share of the variance": f"{(group['mse'] / group['variance']).mean():.3f}",
                "optimizer": f"{group['learning_rate'].iloc[0]:g}, {group['schedule'].iloc[0]}",
            }
        )
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Test error against the teacher's width, a line per kind of features."""
    return draw_variants(rows, "features", FEATURES)


PART = Experiment(
    "beyond the paper",
    "Training the scales of well-conditioned features",
    tasks,
    summarize,
    CAPTION,
    draw,
)
