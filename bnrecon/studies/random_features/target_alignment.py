"""Figure 4 of Random features for normalization layers: permuting a target's outputs so that too few features fit it better."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pandas as pd
import torch

from bnrecon.construction.alignment import (
    alignment_error,
    best_random_permutation,
    complement,
    greedy_permutation,
    overlap_permutation,
    row_scores,
)
from bnrecon.features.portable_random import Stream
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import canvas
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.experiments import Pieces
from bnrecon.studies.random_features.feature_matrices import FEATURES, feature_matrix, target_weight

__all__ = [
    "DRAWS",
    "draw_low_rank",
    "draw_masks",
    "low_rank",
    "low_rank_pieces",
    "low_rank_summary",
    "masks",
    "masks_summary",
    "projection",
    "projection_summary",
]


SIDE = {"smoke": 10, "laptop": 50, "paper": 50}


DRAWS = {"smoke": 2, "laptop": 10, "paper": 10}


# Hidden channels of the target W2 W1 and features short of n. At 100 and 300 the targets have full rank, whatever the caption says.
LOW_RANK = ((100, 60), (300, 100), (25, 100), (10, 100))


DENSITIES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


TRIES = 200


def projection(scale: str) -> pd.DataFrame:
    """Theorem 4.1: the least-squares error of r features beside the target's part in the last n - r left singular vectors, and the last r."""
    side = {"smoke": 6, "laptop": 20, "paper": 20}[scale]
    n, width = side * side, side * side - side
    lines = []
    for (label, name), seed in itertools.product(FEATURES.items(), range(DRAWS[scale])):
        matrix = feature_matrix(name, LayerShape(side, side), width, seed)
        target = target_weight("he_normal", side, side, seed).reshape(-1)
        left = torch.linalg.svd(matrix)[0]
        solution = torch.linalg.lstsq(matrix, target[:, None], driver="gelsd").solution[:, 0]
        lines.append(
            {
                "features": label,
                "c0 = c2": side,
                "r = c1": width,
                "n - r": n - width,
                "seed": seed,
                "least squares": float((matrix @ solution - target).norm()),
                "the last n - r": float((left[:, width:].T @ target).norm()),
                "the last r": float((left[:, n - width :].T @ target).norm()),
            }
        )
    return pd.DataFrame(lines)


def projection_summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a feature distribution: how far both projections are from the least-squares error."""
    lines = []
    for label, group in frame.groupby("features", sort=False):
        line = {"features": label} | {
            name: int(group[name].iloc[0]) for name in ("c0 = c2", "r = c1", "n - r")
        }
        line["least-squares error"] = mean_interval(list(group["least squares"])).format()
        wrong = (group["the last n - r"] / group["least squares"] - 1).abs().max()
        line["the last n - r components are off by, at most"] = f"{wrong:.0e}"
        line["the last r are, times"] = mean_interval(
            list(group["the last r"] / group["least squares"])
        ).format()
        lines.append(line)
    return pd.DataFrame(lines)


def searched(missing: torch.Tensor, target: torch.Tensor, seed: int) -> dict[str, float]:
    """Root mean squared errors without permutation, with the greedy one and with the best of random ones."""
    root = target.numel() ** 0.5
    return {
        "as it is": alignment_error(row_scores(missing, target), torch.arange(len(target))) / root,
        "permuted": greedy_permutation(missing, target)[1] / root,
        f"best of {TRIES} random": best_random_permutation(missing, target, TRIES, seed)[1] / root,
    }


def low_rank_pieces(scale: str, words: object = ()) -> Pieces:
    """A piece for each size of the hidden layer and seed."""
    return {
        f"hidden {hidden}, seed {seed}": lambda hidden=hidden, short=short, seed=seed: low_rank(
            scale, hidden, short, seed
        )
        for hidden, short in LOW_RANK
        for seed in range(DRAWS[scale])
    }


def low_rank(scale: str, hidden: int, short: int, seed: int) -> pd.DataFrame:
    """Every pair of target and feature distribution. Targets are scaled to a root mean square of 1."""
    side = SIDE[scale]
    short = max(1, short * side * side // 2500)
    lines = []
    for label, name in FEATURES.items():
        missing = complement(
            feature_matrix(name, LayerShape(side, side), side * side - short, seed)
        )
        for target_label, target_name in FEATURES.items():
            target = target_weight(target_name, side, side, seed, hidden)
            target = target * (target.numel() ** 0.5 / target.norm())
            lines.append(
                {
                    "features": label,
                    "target": target_label,
                    "hidden": hidden,
                    "rank": int(torch.linalg.matrix_rank(target)),
                    "c1": side * side - short,
                    "c0 = c2": side,
                    "seed": seed,
                    "missing": missing.shape[1],
                }
                | searched(missing, target, seed)
            )
    return pd.DataFrame(lines)


def low_rank_summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a target's hidden size and feature distribution: means over targets and draws, intervals over draws."""
    lines = []
    random = next(column for column in frame.columns if column.startswith("best of"))

    def over_draws(part: pd.DataFrame, values: pd.Series, digits: int) -> str:
        return mean_interval([float(one.mean()) for _, one in values.groupby(part["seed"])]).format(
            digits
        )

    for (hidden, label), group in frame.groupby(["hidden", "features"], sort=False):
        own, other = group[group["target"] == label], group[group["target"] != label]
        ranks = f"{group['rank'].min()} to {group['rank'].max()}"
        line = {"hidden": hidden, "rank": ranks, "c1": int(group["c1"].iloc[0]), "features": label}
        line |= {
            "rmse as it is": over_draws(group, group["as it is"], 4),
            "permuted": over_draws(group, group["permuted"], 4),
        }
        line[random] = over_draws(group, group[random], 4)
        line["smaller by, %"] = over_draws(
            group, 100 * (1 - group["permuted"] / group["as it is"].clip(lower=1e-12)), 1
        )
        line["permuted, own distribution's targets"] = over_draws(own, own["permuted"], 4)
        lines.append(line | {"the others'": over_draws(other, other["permuted"], 4)})
    return pd.DataFrame(lines)


def draw_low_rank(frame: pd.DataFrame, file: io.BytesIO, kind: str) -> None:
    """The paper's colour-coded tables, targets in columns, features in rows: mean error and its standard error over draws.

    Above without permutation, below with the greedy one.
    """
    sizes = list(dict.fromkeys(frame["hidden"]))
    with canvas(file, kind, 2, len(sizes), figsize=(4.2 * len(sizes), 7.4), squeeze=False) as (
        figure,
        grid,
    ):
        names = list(FEATURES)
        for (row, values), (column, hidden) in itertools.product(
            enumerate(("as it is", "permuted")), enumerate(sizes)
        ):
            axes, part = grid[row][column], frame[frame["hidden"] == hidden]
            table = part.pivot_table(index="features", columns="target", values=values).loc[
                names, names
            ]
            error = part.pivot_table(
                index="features", columns="target", values=values, aggfunc="sem"
            ).loc[names, names]
            image = axes.imshow(table, cmap="viridis")
            for (y, x), value in np.ndenumerate(table.to_numpy()):
                ink = "black" if image.norm(value) > 0.6 else "white"
                text = f"{value:.3f}\n±{error.iat[y, x]:.3f}"
                axes.text(x, y, text, ha="center", va="center", fontsize=5.5, color=ink)
            axes.set_xticks(range(len(names)), names, rotation=60, fontsize=7)
            axes.set_yticks(range(len(names)), names, fontsize=7)
            axes.set_title(f"hidden {hidden}, c1 = {part['c1'].iloc[0]}, {values}", fontsize=8)
            figure.colorbar(image, ax=axes, shrink=0.7)
            if row:
                axes.set_xlabel("target")
            if not column:
                axes.set_ylabel("features")


def masks(scale: str, seed: int) -> pd.DataFrame:
    """Targets that are Bernoulli masks of density p, for each feature distribution, with and without permutation."""
    side = SIDE[scale]
    short = max(1, 100 * side * side // 2500)
    lines = []
    for label, name in FEATURES.items():
        matrix = feature_matrix(name, LayerShape(side, side), side * side - short, seed)
        missing = complement(matrix)
        for density in DENSITIES:
            target = bernoulli(side, density, seed)
            line = {
                "features": label,
                "density": density,
                "c1": side * side - short,
                "c0 = c2": side,
                "seed": seed,
            }
            line |= searched(missing, target, seed)
            if name == "id_cond":
                available = (matrix.abs().sum(1) > 0).double().reshape(side, side)
                line["assignment"] = overlap_permutation(available, target)[1] / side
            lines.append(line)
    return pd.DataFrame(lines)


def bernoulli(side: int, density: float, seed: int) -> torch.Tensor:
    """A Ber(p) mask."""
    uniform = Stream(seed, 2_000).uniform((side, side), "mask", 0.5).double() + 0.5
    return (uniform < density).double()


def masks_summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a feature distribution and density: mean ± standard error over draws, as the paper has them."""
    lines = []
    for (label, density), group in frame.groupby(["features", "density"], sort=False):
        line = {"features": label, "density p": density, "c1": int(group["c1"].iloc[0])}
        for name in ("as it is", "permuted", f"best of {TRIES} random", "assignment"):
            values = group[name].dropna() if name in group else pd.Series(dtype=float)
            line[name] = f"{values.mean():.4f} ± {values.sem():.4f}" if len(values) > 1 else ""
        lines.append(line)
    return pd.DataFrame(lines)


def draw_masks(frame: pd.DataFrame, file: io.BytesIO, kind: str) -> None:
    """Error against target density: solid without permutation, dotted with, bars are standard errors."""
    with canvas(file, kind, figsize=(6.5, 4.4)) as (figure, axes):
        for (label, group), colour in zip(
            frame.groupby("features", sort=False),
            ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860"),
            strict=False,
        ):
            for column, style in (("as it is", "-"), ("permuted", ":")):
                by_density = group.groupby("density")[column]
                axes.errorbar(
                    by_density.mean().index,
                    by_density.mean(),
                    by_density.sem(),
                    color=colour,
                    linestyle=style,
                    label=label if style == "-" else None,
                )
            if "assignment" in group and group["assignment"].notna().any():
                best = group.groupby("density")["assignment"].mean()
                axes.plot(
                    best.index,
                    best,
                    color=colour,
                    linestyle="--",
                    label=f"{label}, best assignment",
                )
        axes.set_xlabel("density of the target")
        axes.set_ylabel("rmse (solid: as it is, dotted: permuted)")
        axes.legend(fontsize=7)
