"""Theorem 1 and Lemma 7: a ReLU network rebuilt by a random one of twice its depth and width d²."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from matplotlib.figure import Figure
from torch import nn

from bnrecon.construction.relu_source import RebuiltNetwork, relu_network
from bnrecon.reporting.figures import COLUMN, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.intervals import geometric_mean
from bnrecon.studies.giannou2023.comparison import place_legend

__all__ = [
    "PART",
    "claims",
    "draw",
    "mean_error",
    "measure",
    "random_target",
    "rebuild",
    "summarize",
]

SIDES = {"smoke": (2, 4), "laptop": (4, 8, 16, 32, 64), "paper": (4, 8, 16, 32, 64)}
DEPTHS = {"smoke": (1, 2), "laptop": (1, 2, 4, 8), "paper": (1, 2, 4, 8)}
SEEDS = {"smoke": 2, "laptop": 3, "paper": 10}

CAPTION = (
    "Targets with normal weights of spectral norm 1 and random biases; sources with uniform "
    "weights and random statistics, real BatchNorm1d modules, float64. Error of the function: "
    "largest difference of an output over 1,024 inputs of norm at most 1, relative to the largest "
    "output. Geometric mean over seeds, the largest in brackets."
)


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
    """The columns that a rebuilt network has in every row: its width, and its errors."""
    return {
        "width": max(layer.width for layer in rebuilt.layers),
        "layer_error": max(layer.relative_error for layer in rebuilt.layers),
        "functional_error": rebuilt.functional_error,
    }


def rebuild(side: int, depth: int, seeds: int) -> pd.DataFrame:
    """One row per seed: errors of the layers and of the function."""
    rows = []
    for seed in range(seeds):
        rebuilt = relu_network(random_target(side, depth, seed), seed=seed)
        rows.append(
            {
                "side": side,
                "depth": depth,
                "seed": seed,
                **measure(rebuilt),
            }
        )
    return pd.DataFrame(rows)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per width and depth."""
    return [
        Task(
            f"d = {side}, l = {depth}",
            rebuild,
            {"side": side, "depth": depth, "seeds": SEEDS[scale]},
        )
        for side in SIDES[scale]
        for depth in DEPTHS[scale]
    ]


def mean_error(errors: pd.Series) -> float:
    """The geometric mean; errors may be 0."""
    return geometric_mean(errors, floor=1e-300).mean


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per target width and depth."""
    lines = []
    for (side, depth), group in rows.groupby(["side", "depth"], sort=True):
        layer, function = group["layer_error"], group["functional_error"]
        lines.append(
            {
                "d": side,
                "l": depth,
                "source width": int(group["width"].max()),
                "source depth": 2 * depth,
                "error of a layer": f"{mean_error(layer):.0e} ({layer.max():.0e})",
                "error of the function": f"{mean_error(function):.0e} ({function.max():.0e})",
                "seeds": len(group),
            }
        )
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Error of the function against d, a line per depth."""
    figure, axes = new_figure(size=(COLUMN, 2.8))
    for depth, group in rows.groupby("depth", sort=True):
        errors = group.groupby("side")["functional_error"].apply(mean_error)
        axes.loglog(errors.index, errors, marker="o", label=f"l = {depth}")
    axes.set_xlabel("width d of the target")
    axes.set_ylabel("relative error of the function")
    axes.set_xticks(sorted(rows["side"].unique()), sorted(rows["side"].unique()))
    axes.minorticks_off()
    place_legend(figure, 4, title="depth l of the target")
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Theorem 1 and Remark 1, decided by the largest error of a function and by the widths."""
    worst = rows["functional_error"].max()
    holds = worst < 1e-6 and (rows["width"] == rows["side"] ** 2).all()
    layer = int(rows["side"].max())
    trained, total = 2 * (layer**2 + layer), 2 * layer**3
    return [
        Claim(
            "Theorem 1, Lemma 7, Proposition 1",
            "A random ReLU network of depth 2l and width d² computes a target of depth l and width "
            "d on ||x|| <= 1, by its normalizations alone.",
            "confirmed" if holds else "contradicted",
            f"largest relative error of the function {worst:.0e} in float64, over {len(rows)} "
            f"networks of d up to {rows['side'].max()} and l up to {rows['depth'].max()}, all of "
            "width d² and depth 2l, with random statistics in their normalizations.",
        ),
        Claim(
            "Remark 1",
            "The trainable parameters of both networks are of the same order, d² l; all of the "
            "source are of the order d³ l.",
            "confirmed" if holds else "contradicted",
            f"by count at width d²: 2 (d² + d) scales and shifts and 2 d³ frozen weights a layer "
            f"of the target, beside its d² weights; at d = {layer}: {trained:,}, {total:,} and "
            f"{layer**2:,}.",
        ),
    ]


PART = Experiment(
    "Theorem 1, Lemma 7",
    "Random networks of width d² and depth 2l that compute a target's function",
    tasks,
    summarize,
    CAPTION,
    draw,
    claims=claims,
)
