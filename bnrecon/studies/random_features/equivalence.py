"""Theorem 3.1: training the scales of ID cond features is training the weights, step by step."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

from bnrecon.data import DataSpec, Images, load
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Experiment, Task
from bnrecon.targets.collapsed_pair import CollapsedPair
from bnrecon.targets.models import vgg

__all__ = ["PAIRS", "PART", "reparameterize", "train_together"]

CPU = torch.device("cpu")
STEPS = {"smoke": 10, "laptop": 200, "paper": 500}
BATCH = 64
PRECISIONS = ("float64", "float32")
# A pair is computed as the two convolutions that it is, or collapsed to one.
PAIRS = {"two_convolutions": "two convolutions", "one_convolution": "collapsed to one convolution"}


def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
    """One task for each precision."""
    return [
        Task(precision, train_together, {"precision": precision, "steps": STEPS[scale]})
        for precision in PRECISIONS
    ]


def train_together(precision: str, steps: int) -> pd.DataFrame:
    """Train a small VGG on the digits three times: by weights and by both kinds of pairs.

    All start at the same function and see the same batches: SGD with learning rate 0.05, momentum
    0.9 and weight decay 5e-4 on weights and scales alike.

    Args:
        precision: "float64" or "float32".
        steps: how many steps of SGD.

    Returns:
        One row for each step: the losses, and the largest relative difference of a layer's
        gradient from the weights' gradient.
    """
    torch.manual_seed(0)
    dtype = getattr(torch, precision)
    data = load(DataSpec("digits", crop_padding=0, flip=False))
    weights = vgg(data.shape, len(data.classes), 8, [1, 2], "relu").to(dtype)
    networks = {"weights": weights} | {
        kind: reparameterize(weights, kind == "one_convolution") for kind in PAIRS
    }
    optimizers = [
        torch.optim.SGD(network.parameters(), 0.05, 0.9, weight_decay=5e-4)
        for network in networks.values()
    ]
    rows = []
    for step, (x, y) in enumerate(itertools.islice(_batches(data), steps)):
        row: dict[str, Any] = {"step": step + 1, "precision": precision}
        for optimizer in optimizers:
            optimizer.zero_grad()
        for name, network in networks.items():
            loss = F.cross_entropy(network(x.to(dtype)), y)
            loss.backward()
            row[f"loss_{name}"] = loss.item()
        for kind in PAIRS:
            row[f"gradient_difference_{kind}"] = _gradient_difference(weights, networks[kind])
        for optimizer in optimizers:
            optimizer.step()
        rows.append(row)
    return pd.DataFrame(rows)


def reparameterize(network: nn.Module, collapsed: bool) -> nn.Module:
    """Copy a network with its convolutions as id_cond pairs whose scales are the weights.

    Feature (i, p, j) reads input j and writes output i at tap p, so that γ holds the weight in
    the order (outputs, taps, inputs). The inner layers have scales alone.

    Args:
        network: any network with ``nn.Conv2d`` layers.
        collapsed: compute each pair as one convolution, else as two.

    Returns:
        A network that computes the same function, up to rounding.
    """
    network = copy.deepcopy(network)
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, nn.Conv2d):
                outputs, inputs, *kernel = module.weight.shape
                shape = LayerShape(outputs, inputs, (kernel[0], kernel[1]))
                pair = CollapsedPair(
                    shape, shape.equations, "id_cond", "scale", 0, 0, collapsed
                ).to(module.weight)
                setattr(parent, name, pair.start_from(module.weight))
    return network


def _batches(data: Images) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for epoch in itertools.count():
        yield from data.train_batches(BATCH, 0, epoch, CPU)


def _gradient_difference(weights: nn.Module, pairs: nn.Module) -> float:
    """Largest ‖∂L/∂γ - ∂L/∂vec(W)‖ / ‖∂L/∂vec(W)‖ over the layers."""
    convolutions = [module for module in weights.modules() if isinstance(module, nn.Conv2d)]
    collapsed = [module for module in pairs.modules() if isinstance(module, CollapsedPair)]
    differences = []
    for convolution, pair in zip(convolutions, collapsed, strict=True):
        wanted = _gradient(convolution.weight).permute(0, 2, 3, 1).flatten()
        differences.append(float((wanted - _gradient(pair.gamma)).norm() / wanted.norm()))
    return max(differences)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _loss_difference(rows: pd.DataFrame, kind: str) -> float:
    return float((rows["loss_weights"] - rows[f"loss_{kind}"]).abs().max())


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each precision and kind of pair: differences from training the weights."""
    lines = []
    for (precision, group), (kind, title) in itertools.product(
        rows.groupby("precision", sort=False), PAIRS.items()
    ):
        losses, gradients = group["loss_weights"], group[f"gradient_difference_{kind}"]
        lines.append(
            {
                "precision": precision,
                "pairs computed as": title,
                "steps": len(group),
                "first loss": losses.iloc[0],
                "last loss": losses.iloc[-1],
                "largest difference of losses": _loss_difference(group, kind),
                "relative difference of gradients, first step": gradients.iloc[0],
                "largest in 100 steps": gradients.iloc[:100].max(),
                "largest in all": gradients.max(),
            }
        )
    return pd.DataFrame(lines)


def caption(rows: pd.DataFrame) -> str:
    """Says whether the collapsed pairs gave the weights' losses and gradients bit for bit."""
    same = (
        _loss_difference(rows, "one_convolution") == 0
        and (rows["gradient_difference_one_convolution"] == 0).all()
    )
    outcome = "are the same bit for bit" if same else "differ"
    return (
        "A small VGG is trained on the embedded digits by its weights and by the scales of ID cond "
        "features. Both start at the same function and see the same batches: SGD, momentum 0.9, "
        "weight decay 5e-4 on weights and scales alike. "
        "The inner layers of the pairs have scales and no shifts. "
        "Two convolutions add in another order than one and round differently. "
        "In float64 only rounding remains. In float32 the trainings diverge in the end, "
        "as any two float32 trainings with different rounding do. "
        "A collapsed pair is one convolution with the same numbers as the weight: its losses and "
        f"gradients {outcome}."
    )


def draw_figure(rows: pd.DataFrame) -> Figure:
    """The losses, and the differences of the gradients."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.8))
    part = rows[rows["precision"] == "float64"]
    left.plot(part["step"], part["loss_weights"], color=PALETTE[0], label="weights")
    left.plot(
        part["step"],
        part["loss_two_convolutions"],
        color=PALETTE[3],
        linestyle="--",
        label="ID cond scales, two convolutions",
    )
    left.set_ylabel("training loss (float64)")
    for (precision, group), colour in zip(
        rows.groupby("precision", sort=False), PALETTE, strict=False
    ):
        for (kind, title), style in zip(PAIRS.items(), ("-", ":"), strict=True):
            right.plot(
                group["step"],
                group[f"gradient_difference_{kind}"],
                color=colour,
                linestyle=style,
                label=f"{precision}, {title}",
            )
    right.set_yscale("symlog", linthresh=1e-17)  # equal gradients are drawn at 0
    right.set_ylim(-1e-18, 10)
    right.set_yticks([0, 1e-15, 1e-10, 1e-5, 1])
    right.set_ylabel("relative difference of gradients")
    for axes in (left, right):
        axes.set_xlabel("step")
        axes.legend()
    return figure


PART = Experiment(
    where="Theorem 3.1",
    title="Training ID cond scales compared with training the weights",
    caption=caption,
    tasks=tasks,
    summary=summarize,
    draw=draw_figure,
    formats={
        "first loss": ".3f",
        "last loss": ".3f",
        "largest difference of losses": ".1e",
        "relative difference of gradients, first step": ".1e",
        "largest in 100 steps": ".1e",
        "largest in all": ".1e",
    },
)
