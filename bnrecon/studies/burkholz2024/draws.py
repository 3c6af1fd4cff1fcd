"""Shares of draws that are rebuilt: counted with their exact intervals, and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from scipy import stats


def count_rebuilt(errors: Sequence[float], limit: float) -> dict[str, float]:
    """How many errors are within the limit; ``low`` and ``high`` are the share's 95% interval.

    >>> counts = count_rebuilt([0.1, 0.2, 3.0], 1.0)
    >>> counts["rebuilt"], counts["draws"], round(counts["low"], 3)
    (2, 3, 0.094)
    """
    rebuilt, draws = sum(error <= limit for error in errors), len(errors)
    interval = stats.binomtest(rebuilt, draws).proportion_ci(0.95)  # Clopper and Pearson
    counts = {"rebuilt": rebuilt, "draws": draws, "low": interval.low, "high": interval.high}
    return counts | {"median_error": float(torch.tensor(errors).median())}


def draw_shares(axes: Axes, places: pd.Series, rows: pd.DataFrame, **style: Any) -> None:
    """Shares of draws with their intervals, at places of the axes."""
    share = rows["rebuilt"] / rows["draws"]
    ends = [(share - rows["low"]).clip(lower=0), (rows["high"] - share).clip(lower=0)]
    axes.errorbar(places, share, ends, capsize=2, **style)
