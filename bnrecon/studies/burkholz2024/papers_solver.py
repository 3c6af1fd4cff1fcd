"""Where the accuracy goes with the papers' solver (Burkholz 2024, Sect. 3.1): every layer after LU and after LBFGS."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from bnrecon.construction.two_layer import composed_weight, relative_error, two_layer_system
from bnrecon.features.drawing import draw as draw_features
from bnrecon.reconstruction.folding import find_layers
from bnrecon.reporting.figures import canvas
from bnrecon.reproduction.experiments import Pieces
from bnrecon.reproduction.trainings import target_of
from bnrecon.runtime.precision import FLOAT32
from bnrecon.solvers import solve

__all__ = ["draw", "errors", "pieces", "summary"]


TARGETS = {
    "smoke": ("data=digits", "target=vgg_small", "scale=smoke"),
    "laptop": ("target=vgg18", "data=cifar10", "scale=laptop", "target.width=16"),
    "paper": ("target=vgg18", "data=cifar10", "scale=paper", "target.width=64"),
}


SEEDS = {"smoke": (0,), "laptop": (0, 1, 2), "paper": (0,)}


WAYS = {"LU": "#dd8452", "LU, LBFGS": "#c44e52", "refined": "#4c72b0"}


def pieces(scale: str, words: Sequence[str] = ()) -> Pieces:
    """A piece for each source seed."""
    return {f"seed {seed}": lambda seed=seed: errors(scale, seed, words) for seed in SEEDS[scale]}


def errors(scale: str, seed: int, words: Sequence[str] = ()) -> pd.DataFrame:
    """‖W' - W‖ / ‖W‖ of each layer of a trained target at minimum width (he_normal), recomputed in float64 from the operator.

    "LU" is ``torch.linalg.solve`` in float32, "LU, LBFGS" the papers' solver from there, "refined" bnrecon's choice for square systems.
    """
    trained, _, device = target_of([*TARGETS[scale], *words])
    lines = []
    for number, found in enumerate(find_layers(trained.network).layers):
        target, shape = found.target, found.target.shape
        features = draw_features("he_normal", shape, shape.minimum_width, seed, number)
        system = two_layer_system(target, features, device, orthogonal=False)
        answers = {
            "LU": torch.linalg.solve(
                system.operator.to(FLOAT32).dense(), system.rhs.float()
            ).double(),
            "LU, LBFGS": solve("lu_lbfgs", system).scale,
            "refined": solve("refined", system).scale,
        }
        line = {
            "layer": found.name,
            "n": shape.equations,
            "width": shape.minimum_width,
            "seed": seed,
        }
        for way, x in answers.items():
            weight = composed_weight(system.matrix, system.scales(x), features)
            lines.append(line | {"solver": way, "error": relative_error(weight, target.weight)})
    return pd.DataFrame(lines)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a layer: geometric mean over seeds, the largest in brackets."""
    lines = []
    for (layer, n, width), group in frame.groupby(["layer", "n", "width"], sort=False):
        line = {"layer": layer, "n": n, "c1 = n - c2 + 1": width}
        for way, part in group.groupby("solver", sort=False):
            line[f"error after {way}"] = (
                f"{np.exp(np.log(part['error']).mean()):.1e} ({part['error'].max():.1e})"
            )
        lines.append(line)
    return pd.DataFrame(lines)


def draw(frame: pd.DataFrame, file: io.BytesIO, kind: str) -> None:
    """Every layer's error after each step, with the range over seeds."""
    layers = list(frame["layer"].unique())
    with canvas(file, kind, figsize=(8, 4)) as (figure, axes):
        for way, colour in WAYS.items():
            part = frame[frame["solver"] == way].groupby("layer", sort=False)["error"]
            middle = np.exp(part.apply(lambda values: np.log(values).mean())).to_numpy()
            spread = np.stack(
                [middle - part.min().to_numpy(), part.max().to_numpy() - middle]
            ).clip(min=0)
            axes.errorbar(
                range(len(layers)),
                middle,
                spread,
                marker="o",
                markersize=4,
                capsize=3,
                color=colour,
                label=way,
            )
        axes.set_yscale("log")
        axes.set_xticks(
            range(len(layers)),
            [layer.removeprefix("features.") for layer in layers],
            rotation=60,
            ha="right",
            fontsize=8,
        )
        axes.set_ylabel("relative error of the rebuilt weight\n(geometric mean, range over seeds)")
        axes.legend(fontsize=8)
