"""Eq. 3: ID cond features of minimum width, their condition number and the targets they reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch

from bnrecon.features.drawing import draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.pair import Features
from bnrecon.features.shapes import LayerShape
from bnrecon.reproduction.parts import Decisions, only, part, sweep, table
from bnrecon.studies.random_features.averages import interval_of
from bnrecon.studies.random_features.feature_matrices import CPU, target_weight

TARGETS = {  # by name: the target's distribution; ``None``: the identity
    "normal": "he_normal",
    "each weight kept with 1/2": "sparse_he_normal",
    "identity": None,
}
CHANNELS = {"smoke": [2, 4], "laptop": [2, 5, 20, 40], "paper": [2, 5, 20, 50]}
DRAWS = {"smoke": 3, "laptop": 10, "paper": 10}
PIVOT = 1e-3  # replaces a zero by which a row would be divided
EXACT = 1e-6  # a float32 target counts as rebuilt up to this relative error


def measure_targets(target: str, channels: Sequence[int], draws: int) -> pd.DataFrame:
    """Rebuild one of ``TARGETS`` from c1 = n - c2 + 1 ID cond features.

    One row per value of c0 = c2 in ``channels`` and draw of a random target.
    """
    rows, name = [], TARGETS[target]
    for size in channels:
        shape = LayerShape(size, size)
        features = draw("id_cond", shape, shape.equations - size + 1, 0, 0)
        condition, balanced = condition_numbers(features)
        for seed in range(draws if name else 1):
            weight = target_weight(name, size, size, seed) if name else torch.eye(size)
            rebuilt, largest = rebuild(features, weight.float())
            row = {"target": target, "channels": size, "n": shape.equations, "c1": features.width}
            row |= {"seed": seed, "condition_number": condition}
            row |= {"balanced_condition_number": balanced}
            row |= {"lost_rows": int(lost_rows(weight).sum())}
            row |= {"relative_error": float((rebuilt - weight).norm() / weight.norm())}
            rows.append(row | {"largest_scale": largest})
    return pd.DataFrame(rows)


def condition_numbers(features: Features) -> tuple[float, float]:
    """κ of Eq. 3's M over nonzero singular values, and with the shared column over sqrt(c2).

    >>> shape = LayerShape(4, 3)
    >>> [round(value, 6) for value in condition_numbers(draw("id_cond", shape, 9, 0, 0))]
    [2.0, 1.0]
    """
    matrix = feature_operator(features, torch.float64, CPU).dense()
    balanced = matrix.clone()
    balanced[:, 0] /= math.sqrt(features.shape.outputs)
    return float(torch.linalg.cond(matrix)), float(torch.linalg.cond(balanced))


def lost_rows(weight: torch.Tensor) -> torch.Tensor:
    """The rows of a target (c2, c0) that no scales reach.

    γ2_i γ1_1 = w_i1 = 0 makes all of row i zero, or the first entries of all rows.

    >>> lost_rows(torch.tensor([[1.0, 2.0], [0.0, 0.0], [0.0, 1.0]]))
    tensor([False, False,  True])
    """
    first = weight[:, 0]
    return (first == 0) & (weight != 0).any(1) & (first != 0).any()


def rebuild(features: Features, weight: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Eq. 3's solution γ2_i = w_i1, γ1_(ij) = w_ij / w_i1, with the shared scale γ1_1 = 1.

    Rows in ``lost_rows`` are divided by ``PIVOT`` instead of 0. If all w_i1 are 0, so is γ1_1. For
    ID cond features of minimum width and a target (c2, c0), returns diag(γ2) B diag(γ1) A and the
    largest scale.
    """
    first, second = features.weights()
    outer = weight[:, 0].clone()
    shared = bool((outer != 0).any())
    outer[lost_rows(weight) if shared else outer == 0] = PIVOT if shared else 1
    quotients = (weight / outer[:, None]).nan_to_num(0)  # of a row of zeros
    quotients[:, 0] = float(shared)
    # In the order of the features: the entry (1, 1), then all (i, j > 1), row by row.
    inner = torch.cat([quotients[:1, 0], quotients[:, 1:].flatten()])
    rebuilt = outer[:, None] * (second.flatten(1) * inner) @ first
    return rebuilt, float(torch.cat([inner, outer]).abs().max())


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per type of target and size."""
    columns: dict[str, Any] = {
        "target": "target",
        "c0 = c2": "channels",
        "c1 = n - c2 + 1": "c1",
        "κ(M)": "condition_number",
        "sqrt(c2)": lambda group: math.sqrt(group["channels"].iloc[0]),
        "κ, shared weight 1/sqrt(c2)": "balanced_condition_number",
        "rows out of reach": interval_of("lost_rows"),
        "largest relative error": lambda group: group["relative_error"].max(),
        "largest scale, median": lambda group: group["largest_scale"].median(),
    }
    return table(rows, ["target", "channels"], False, **columns)


def decide(rows: pd.DataFrame) -> Decisions:
    """Are targets with a density reached, and all others too, and how is M conditioned?"""
    normal = rows.loc[rows["target"] == "normal", "relative_error"]
    lost = rows["lost_rows"] > 0
    off = (rows["condition_number"] / rows["channels"] ** 0.5 - 1).abs().max()
    perfect = rows["condition_number"].min() <= 1
    every = "needs a condition" if lost.any() else "confirmed"
    verdicts: dict[str, str | bool] = {
        "any": every if set(TARGETS) <= set(rows["target"]) else "undecided",
        "conditioning": bool(off < EXACT and not perfect),
    }
    if len(normal):
        verdicts["density"] = bool(normal.max() <= EXACT)
    return verdicts, {
        "pivot": PIVOT,
        "normal": len(normal),
        "worst": normal.max(),
        "exact": EXACT,
        "channels": ", ".join(map(str, rows["channels"].unique())),
        "balanced": rows["balanced_condition_number"].iloc[0],
    }


SIZE = {"channels": CHANNELS, "draws": DRAWS}
TASKS = sweep(measure_targets, "{target}", {"target": tuple(TARGETS)}, SIZE)
FORMATS = dict.fromkeys(["κ(M)", "sqrt(c2)", "κ, shared weight 1/sqrt(c2)"], ".4f")
FORMATS |= {
    "rows out of reach": ".1f",
    "largest relative error": ".1e",
    "largest scale, median": ".3g",
}
DROPPED = ["c1 = n - c2 + 1", *list(FORMATS)[:3], "largest scale, median"]
EXCERPT = only("c0 = c2", 2, 40, 50, drop=DROPPED)
PART = part(__file__, TASKS, summarize, decide=decide, formats=FORMATS, excerpt=EXCERPT)
