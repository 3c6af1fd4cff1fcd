"""Averages over seeds, for tables and figures."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bnrecon.reporting.statistics import mean_interval

__all__ = ["geometric_mean", "intervals_by"]


def geometric_mean(values: pd.Series) -> float:
    """The exponential of the mean logarithm.

    >>> round(geometric_mean(pd.Series([1.0, 100.0])), 6)
    10.0
    """
    return float(np.exp(np.log(values).mean()))


def intervals_by(rows: pd.DataFrame, by: str, column: str) -> pd.DataFrame:
    """Means of a column for each value of another, with 95% Student-t half-widths, for error bars.

    One value alone has a half-width of 0.

    >>> intervals_by(pd.DataFrame({"x": [1, 1, 2], "y": [2.0, 4.0, 5.0]}), "x", "y")["mean"]
    x
    1    3.0
    2    5.0
    Name: mean, dtype: float64
    """
    found = {value: mean_interval(list(group[column])) for value, group in rows.groupby(by)}
    table = {
        "mean": [interval.mean for interval in found.values()],
        "half_width": [interval.half_width or 0.0 for interval in found.values()],
    }
    return pd.DataFrame(table, index=pd.Index(list(found), name=by))
