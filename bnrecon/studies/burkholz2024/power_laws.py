"""Power laws of errors that spread over decades: slopes of their logarithms."""

from __future__ import annotations

import numpy as np
import pandas as pd


def exponents(rows: pd.DataFrame, size: str, value: str) -> list[float]:
    """The p of value ~ size^p of each seed: its least-squares slope of the logarithms.

    A seed's solves share layer and features, so that only seeds are independent: a seed gives one
    slope, and none if it has a single size.

    Args:
        rows: with a column "seed".
        size: a column of positive numbers.
        value: another.

    >>> rows = {"seed": [0, 0, 1, 1, 2], "n": [1, 10, 1, 100, 1], "error": [2, 20, 3, 0.03, 7]}
    >>> [round(p, 12) for p in exponents(pd.DataFrame(rows), "n", "error")]
    [1.0, -1.0]
    """
    slopes = []
    for _, of_seed in rows.groupby("seed"):
        x, y = np.log(of_seed[size].to_numpy(float)), np.log(of_seed[value].to_numpy(float))
        x = x - x.mean()
        if of_seed[size].nunique() > 1:
            slopes.append(float(x @ y / (x @ x)))
    return slopes
