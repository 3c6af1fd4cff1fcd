"""Theorem 1 and Lemma 7: a ReLU network rebuilt by a random one of twice its depth and width d²."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from torch import nn

from bnrecon.construction.relu_source import RebuiltNetwork, relu_network
from bnrecon.reporting.figures import COLUMN, Figure, draw_legend, new_figure
from bnrecon.reproduction.intervals import geometric_mean
from bnrecon.reproduction.parts import Decisions, only, part, sweep, table

SIDES = {"smoke": (2, 4), "laptop": (4, 8, 16, 32, 64), "paper": (4, 8, 16, 32, 64)}
DEPTHS = {"smoke": (1, 2), "laptop": (1, 2, 4, 8), "paper": (1, 2, 4, 8)}
SEEDS = {"smoke": 2, "laptop": 3, "paper": 10}


def random_target(side: int, depth: int, seed: int) -> nn.Sequential:
    """A ReLU network with ||W*|| = 1 and biases of deviation 0.1, float64."""
    generator = torch.Generator().manual_seed(seed)
    modules: list[nn.Module] = []
    for _ in range(depth):
        layer = nn.Linear(side, side, dtype=torch.float64)
        weight = torch.randn(side, side, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(weight / torch.linalg.matrix_norm(weight, 2))
            layer.bias.copy_(0.1 * torch.randn(side, generator=generator, dtype=torch.float64))
        modules += [layer, nn.ReLU()]
    return nn.Sequential(*modules[:-1]).eval()


def measure(rebuilt: RebuiltNetwork) -> dict[str, float]:
    """A rebuilt network's columns in every row: its width and errors."""
    return {
        "width": max(layer.width for layer in rebuilt.layers),
        "layer_error": max(layer.relative_error for layer in rebuilt.layers),
        "functional_error": rebuilt.functional_error,
    }


def rebuild(side: int, depth: int, seeds: int) -> pd.DataFrame:
    """One row per seed: errors of the layers and of the function."""
    rebuilt = (relu_network(random_target(side, depth, seed), seed=seed) for seed in range(seeds))
    common = {"side": side, "depth": depth}
    return pd.DataFrame([common | {"seed": n} | measure(one) for n, one in enumerate(rebuilt)])


def mean_error(errors: pd.Series) -> float:
    """The geometric mean; errors may be 0."""
    return geometric_mean(errors, floor=1e-300).mean


def format_errors(column: str) -> Callable[[pd.DataFrame], str]:
    """Mean and largest of a column, for the table."""
    return lambda group: f"{mean_error(group[column]):.0e} ({group[column].max():.0e})"


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per target width and depth."""
    columns: dict[str, Any] = {
        "d": "side",
        "l": "depth",
        "source width": lambda group: int(group["width"].max()),
        "error of a layer": format_errors("layer_error"),
        "error of the function": format_errors("functional_error"),
    }
    return table(rows, ["side", "depth"], **columns)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the error of the function against d, a line per depth."""
    figure, axes = new_figure(size=(COLUMN, 2.8))
    for depth, group in rows.groupby("depth", sort=True):
        errors = group.groupby("side")["functional_error"].apply(mean_error)
        axes.loglog(errors.index, errors, marker="o", label=f"l = {depth}")
    axes.set(xlabel="width d of the target", ylabel="relative error of the function")
    axes.set_xticks(sorted(rows["side"].unique()), sorted(rows["side"].unique()))
    axes.minorticks_off()
    draw_legend(figure, 4, title="depth l of the target")
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide both claims by the largest functional error and the widths."""
    worst, side = rows["functional_error"].max(), int(rows["side"].max())
    holds = bool(worst < 1e-6 and (rows["width"] == rows["side"] ** 2).all())
    numbers = {"worst": worst, "networks": len(rows), "side": side, "depth": rows["depth"].max()}
    numbers |= {"trained": 2 * (side**2 + side), "total": 2 * side**3, "weights": side**2}
    return {"Theorem 1, Lemma 7, Proposition 1": holds, "Remark 1": holds}, numbers


OVER = {"side": SIDES, "depth": DEPTHS}
TASKS = sweep(rebuild, "d = {side}, l = {depth}", OVER, {"seeds": SEEDS})
PART = part(
    __file__, TASKS, summarize, draw, decide, excerpt=only("l", 1, 8, drop=["source width"])
)
