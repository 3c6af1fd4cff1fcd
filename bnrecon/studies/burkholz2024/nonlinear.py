"""A nonlinear first layer on a trained target's activations (Burkholz 2024, Theorem 2.4)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction import assemble, gather, plan_layers, solve_layer
from bnrecon.reconstruction.folding import FoldedLayer, find_layers
from bnrecon.reporting.figures import PAGE, PALETTE, Figure, new_figure
from bnrecon.reproduction.parts import Decisions, only, part, sweep
from bnrecon.reproduction.trainings import obtain
from bnrecon.runtime.hardware import exact_float32
from bnrecon.solvers.base import Solution
from bnrecon.studies.burkholz2024.layers import RUNS

EXACT, SMOOTH = ("relu", "leaky_relu"), ("tanh", "sigmoid")
EPSILONS = (1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
TRAINING_IMAGES, TEST_IMAGES = 1024, 16
MARGIN = 2.0
PRECISIONS = {"float64": torch.float64, "float32": torch.float32}


def errors(options: Sequence[str]) -> pd.DataFrame:
    """Rebuild each layer of a run's target alone, with each activation, epsilon and precision.

    One row each, with epsilon 0 for activations that are exactly linear: ``error`` is
    max |S(x) - C(x)| over the layer's inputs on test images, and ``outside`` counts intermediate
    values beyond the range of the training images.
    """
    trained, data, device = obtain(options)
    layers = find_layers(trained.network).layers
    seen = torch.cat(list(data.plain_train_batches(256, device, TRAINING_IMAGES)))
    tested = torch.cat([x for x, _ in data.test_batches(TEST_IMAGES, device, limit=TEST_IMAGES)])
    training = _inputs(trained.network, layers, seen)
    testing = _inputs(trained.network, layers, tested)
    rows = []
    for layer in tqdm(layers, desc="layers", disable=None):
        for precision in PRECISIONS:
            rows += _errors_of_layer(layer, training[layer.name], testing[layer.name], precision)
    return pd.DataFrame(rows)


def _errors_of_layer(
    layer: FoldedLayer, training: torch.Tensor, testing: torch.Tensor, precision: str
) -> list[dict[str, Any]]:
    """One row per activation and epsilon; the scales are solved once."""
    dtype = PRECISIONS[precision]
    alone, x = _module_of(layer, dtype), testing.to(dtype)
    solutions: dict[str, Solution] = {}
    rows: list[dict[str, Any]] = []
    with torch.inference_mode(), exact_float32():
        expected = alone(x)
    for activation in (*EXACT, *SMOOTH):
        for epsilon in EPSILONS if activation in SMOOTH else (0.0,):
            spec = FeatureSpec(activation=activation, epsilon=epsilon or 1.0, margin=MARGIN)
            plan = plan_layers(alone, spec)
            if not solutions:
                solutions = {planned.name: solve_layer(planned) for planned in plan.layers}
                layers = [planned.folded for planned in plan.layers]
                moments = gather(alone, layers, [training.to(dtype)])
            source: Any = assemble(plan, solutions, moments).network
            with torch.inference_mode(), exact_float32():
                error = float((source(x) - expected).abs().max())
            row = {"layer": layer.name, "activation": activation, "epsilon": epsilon}
            row |= {"precision": precision, "error": error}
            row["largest_output"] = float(expected.abs().max())
            rows.append(row | {"outside": source.outside})
    return rows


def _module_of(layer: FoldedLayer, dtype: torch.dtype) -> nn.Module:
    """The layer with its normalization folded in, as a separate module."""
    module: Any = copy.deepcopy(layer.module).to(dtype)
    weight = layer.target.weight
    if not isinstance(module, nn.Conv2d):
        weight = weight[:, :, 0, 0]
    module.weight = nn.Parameter(weight.to(dtype))
    module.bias = nn.Parameter(layer.target.bias.to(dtype))
    return module.eval()


def _inputs(
    network: nn.Module, layers: Sequence[FoldedLayer], images: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Each layer's inputs when the network sees these images."""
    names = {network.get_submodule(layer.name): layer.name for layer in layers}
    recorded: dict[str, torch.Tensor] = {}

    def record(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        recorded[names[module]] = inputs[0].clone()

    handles = [module.register_forward_pre_hook(record) for module in names]
    with torch.inference_mode(), exact_float32():
        network(images)
    for handle in handles:
        handle.remove()
    return {name: value.clone() for name, value in recorded.items()}


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per activation and epsilon: the worst layer, and whether the bound holds."""
    lines = []
    for (activation, epsilon), group in rows.groupby(["activation", "epsilon"], sort=False):
        by = {precision: group[group["precision"] == precision] for precision in PRECISIONS}
        line = {"activation": activation, "epsilon": f"{epsilon:.0e}" if epsilon else "exact"}
        for precision, rebuilt in by.items():
            line[f"max. error, {precision}"] = f"{rebuilt['error'].max(skipna=False):.1e}"
        for precision, rebuilt in by.items():
            within = f"{int((rebuilt['error'] <= epsilon).sum())} of {len(rebuilt)}"
            line[f"layers within epsilon, {precision}"] = within if epsilon else ""
        line["values outside the range"] = str(int(by["float64"]["outside"].sum()))
        lines.append(line)
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Error of every layer against epsilon, in both precisions, with the bound."""
    figure, grid = new_figure(1, 2, (PAGE, 3.0), sharey=True)
    for letter, axes, activation in zip("ab", grid, SMOOTH, strict=True):
        styles = (PALETTE[0], "-"), (PALETTE[3], "-.")
        for precision, (colour, line) in zip(PRECISIONS, styles, strict=True):
            chosen = rows[(rows["activation"] == activation) & (rows["precision"] == precision)]
            axes.loglog(chosen["epsilon"], chosen["error"], ".", color=colour, alpha=0.4)
            worst = chosen.groupby("epsilon")["error"].max()
            axes.loglog(worst.index, worst, line, color=colour, label=f"{precision}, worst layer")
        axes.loglog(EPSILONS, EPSILONS, "--", color="grey", label="bound of the theorem")
        axes.set_title(f"({letter}) {activation}, {rows['layer'].nunique()} layers")
        axes.set_xlabel("epsilon")
    grid[0].plot([], [], ".", color="grey", label="a layer")
    grid[0].set_ylabel("largest error of a layer's outputs")
    grid[0].legend()
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide the bound and the exact activations, in float64."""
    exact, smooth, rounded = (
        rows[(rows["precision"] == precision) & rows["activation"].isin(kinds)]
        for kinds, precision in ((EXACT, "float64"), (SMOOTH, "float64"), (SMOOTH, "float32"))
    )
    relative = float((exact["error"] / exact["largest_output"]).max())
    within = smooth["error"] <= smooth["epsilon"]
    numbers = {"layers": exact["layer"].nunique(), "relative": relative}
    numbers |= {"cases": len(within), "within": int(within.sum())}
    numbers["within_float32"] = int((rounded["error"] <= rounded["epsilon"]).sum())
    numbers |= {"largest": smooth["epsilon"].max(), "smallest": smooth["epsilon"].min()}
    return {"exact": relative < 1e-8, "smooth": bool(within.all())}, numbers


DROPPED = ["layers within epsilon, float64", "values outside the range"]
EXCERPT = only("epsilon", "exact", *map("{:.0e}".format, EPSILONS[3::3]), drop=DROPPED)
TASKS = sweep(errors, "all", {}, runs=RUNS, reads_target=True)
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=EXCERPT)
