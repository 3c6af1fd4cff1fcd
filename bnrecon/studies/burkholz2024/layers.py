"""Where the paper's solver loses accuracy, layer by layer (Burkholz 2024, Sect. 3.1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import composed_weight, relative_error
from bnrecon.features.drawing import draw as draw_features
from bnrecon.operators.system import System
from bnrecon.reconstruction.folding import find_layers
from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Task, no_overrides
from bnrecon.reproduction.intervals import geometric_mean
from bnrecon.reproduction.texts import part
from bnrecon.reproduction.trainings import obtain
from bnrecon.runtime.precision import FLOAT32
from bnrecon.solvers import solve
from bnrecon.solvers.spec import SolverSpec

TARGETS = {
    "smoke": ("data=digits", "target=vgg_small", "scale=smoke"),
    "laptop": ("target=vgg18", "data=cifar10", "scale=laptop", "target.width=16"),
    "paper": ("target=vgg18", "data=cifar10", "scale=paper", "target.width=64"),
}
SEEDS = {"smoke": (0,), "laptop": (0, 1, 2), "paper": (0,)}
COLOURS = {"LU": PALETTE[1], "LU, LBFGS": PALETTE[3], "refined": PALETTE[0]}


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """A task for each source seed."""
    return [
        Task(f"seed {seed}", errors, {"seed": seed}, (*TARGETS[scale], *options), reads_target=True)
        for seed in SEEDS[scale]
    ]


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


def summary(rows: pd.DataFrame) -> pd.DataFrame:
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
    axes.set_yscale("log")
    sizes = f"n = {rows['n'].min():,} to {rows['n'].max():,} equations"
    axes.set_title(f"{sizes}, he_normal, c1 = n - c2 + 1")
    labels = [name.removeprefix("features.") for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=60, ha="right")
    seeds = rows["seed"].nunique()
    spread = f"(geometric mean, range over {seeds} seeds)"
    axes.set_ylabel(f"relative error of the rebuilt weight\n{spread}")
    axes.legend()
    return figure


PART = part(__file__, tasks, summary, draw, options=no_overrides)
