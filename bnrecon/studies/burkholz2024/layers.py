"""Where the paper's solver loses accuracy, layer by layer (Burkholz 2024, Sect. 3.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer, composed_weight, relative_error
from bnrecon.features.drawing import draw as draw_features
from bnrecon.features.matrix import feature_operator
from bnrecon.features.pair import Features
from bnrecon.operators.system import Scales, System
from bnrecon.reconstruction.folding import find_layers
from bnrecon.reporting.figures import PAGE, PALETTE, Figure, new_figure
from bnrecon.reproduction.intervals import geometric_mean
from bnrecon.reproduction.parts import only, part, sweep
from bnrecon.reproduction.trainings import obtain
from bnrecon.runtime.precision import FLOAT32
from bnrecon.solvers import solve
from bnrecon.solvers.spec import SolverSpec

TARGETS = {
    "smoke": ("data=digits", "target=vgg_small", "scale=smoke"),
    "laptop": ("target=vgg18", "data=cifar10", "scale=laptop"),
    "paper": ("target=vgg18", "data=cifar10", "scale=paper"),
}
WIDTHS = {"smoke": (), "laptop": ("target.width=16",), "paper": ("target.width=64",)}
RUNS = {scale: (*run, *WIDTHS[scale]) for scale, run in TARGETS.items()}  # at the usual widths
SEEDS = {"smoke": (0,), "laptop": (0, 1, 2), "paper": (0,)}
COLOURS = {"LU": PALETTE[1], "LU, LBFGS": PALETTE[3], "refined": PALETTE[0]}

# One layer per stage of VGG18, 3x3, w channels to w: n = 9 w². The small VGG has the first two.
STAGES = tuple(f"features.conv{stage}_2" for stage in range(1, 6))


@dataclass(frozen=True)
class SingleLayer:
    """A target layer, features for it, and the system of their scales."""

    target: TargetLayer
    features: Features
    system: System

    def errors(self, scales: Scales) -> tuple[float, float]:
        """‖W' - W‖ / ‖W‖, composed in float64, and composed in float32 from rounded scales."""
        single = feature_operator(self.features, torch.float32, self.system.rhs.device)
        exact, assembled = (
            relative_error(composed_weight(matrix, scales, self.features), self.target.weight)
            for matrix in (self.system.matrix, single)
        )
        return exact, assembled


def single_layer(name: str, seed: int, excess: int | None, options: Sequence[str]) -> SingleLayer:
    """A layer of a trained target, with he_normal features.

    Args:
        name: the layer's name in the target.
        seed: the features' seed.
        excess: features beyond the equations, c1 - n; ``None`` for the minimum width, n - c2 + 1.
        options: overrides of the target's run; the target is trained if needed.
    """
    trained, _, device = obtain(options)
    layers = find_layers(trained.network).layers
    number = [layer.name for layer in layers].index(name)
    target = layers[number].target
    shape = target.shape
    width = shape.minimum_width if excess is None else shape.equations + excess
    features = draw_features("he_normal", shape, width, seed, number)
    return SingleLayer(target, features, layer_system(target, features, device, False))


def errors(seed: int, options: Sequence[str]) -> pd.DataFrame:
    """‖W' - W‖ / ‖W‖ of each layer of a run's trained target, in float64 from the operator.

    The he_normal features have minimum width.
    """
    trained, _, device = obtain(options)
    rows = []
    for number, layer in enumerate(find_layers(trained.network).layers):
        target, shape = layer.target, layer.target.shape
        features = draw_features("he_normal", shape, shape.minimum_width, seed, number)
        system = layer_system(target, features, device, orthogonal=False)
        for solver, scale in _solutions(system).items():
            weight = composed_weight(system.matrix, system.scales(scale), features)
            error = relative_error(weight, target.weight)
            sizes = {"layer": layer.name, "n": shape.equations, "width": shape.minimum_width}
            rows.append(sizes | {"seed": seed, "solver": solver, "error": error})
    return pd.DataFrame(rows)


def _solutions(system: System) -> dict[str, torch.Tensor]:
    """Scales by ``torch.linalg.solve`` in float32, then LBFGS, and by the refined solver."""
    matrix = system.operator.to(FLOAT32).dense()
    return {
        "LU": torch.linalg.solve(matrix, system.rhs.float()).double(),
        "LU, LBFGS": solve(system, SolverSpec("lu_lbfgs")).scale,
        "refined": solve(system, SolverSpec("refined")).scale,
    }


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per layer: geometric mean over seeds, the largest in brackets."""
    lines = []
    for (layer, n, width), group in rows.groupby(["layer", "n", "width"], sort=False):
        line = {"layer": layer, "n": n, "c1 = n - c2 + 1": width}
        for solver, solved in group.groupby("solver", sort=False):
            mean = geometric_mean(solved["error"]).mean
            line[f"error after {solver}"] = f"{mean:.1e} ({solved['error'].max():.1e})"
        lines.append(line)
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Every layer's error after each step, with the range over seeds."""
    names = list(rows["layer"].unique())
    figure, axes = new_figure(1, 1, (PAGE, 3.2))
    for solver, colour in COLOURS.items():
        errors_by_layer = rows[rows["solver"] == solver].groupby("layer", sort=False)["error"]
        middle = errors_by_layer.apply(lambda values: geometric_mean(values).mean).to_numpy()
        low, high = errors_by_layer.min().to_numpy(), errors_by_layer.max().to_numpy()
        ends = np.stack([middle - low, high - middle]).clip(min=0)
        style = {"marker": "o", "capsize": 3, "color": colour, "label": solver}
        axes.errorbar(range(len(names)), middle, ends, **style)
    sizes = f"n = {rows['n'].min():,} to {rows['n'].max():,} equations"
    axes.set(yscale="log", title=f"{sizes}, he_normal, c1 = n - c2 + 1")
    labels = [name.removeprefix("features.") for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=60, ha="right")
    seeds = rows["seed"].nunique()
    spread = f"(geometric mean, range over {seeds} seeds)"
    axes.set_ylabel(f"relative error of the rebuilt weight\n{spread}")
    axes.legend()
    return figure


NAMES = [*map("features.conv{}".format, ("1_1", "1_2", "3_1", "5_4")), "classifier"]
TASKS = sweep(errors, "seed {seed}", {"seed": SEEDS}, runs=RUNS, reads_target=True)
EXCERPT = only("layer", *NAMES, drop=["c1 = n - c2 + 1"])
PART = part(__file__, TASKS, summarize, draw, excerpt=EXCERPT)
