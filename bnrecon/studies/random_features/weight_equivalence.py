"""Theorem 3.1 of Random features for normalization layers: training ID cond scales is training the weights, step by step."""

from __future__ import annotations

import copy
import io
import itertools

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.data import DataSpec, load
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import canvas
from bnrecon.targets.collapsed_pair import CollapsedPair
from bnrecon.targets.models import vgg

__all__ = ["draw", "reparameterized", "summary", "trained_together"]


STEPS = {"smoke": 10, "laptop": 200, "paper": 500}


BATCH = 64


SCALES = ("as they stand", "collapsed")


def reparameterized(network: nn.Module, collapsed: bool) -> nn.Module:
    """A copy whose convolutions are id_cond pairs with scale-only inner layers, the scales initialised as the weights.

    Feature (i, p, j) reads input j and writes output i at tap p, so that γ is the weight in the order (outputs, taps, inputs).
    ``collapsed``: each pair is computed as one convolution; else as the two that it is.
    """
    network = copy.deepcopy(network)
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, nn.Conv2d):
                outputs, inputs, *kernel = module.weight.shape
                shape = LayerShape(outputs, inputs, tuple(kernel))
                pair = CollapsedPair(
                    shape, shape.equations, "id_cond", "scale", 0, 0, collapsed
                ).to(module.weight)
                setattr(parent, name, pair.start_from(module.weight))
    return network


def trained_together(dtype: torch.dtype, steps: int) -> pd.DataFrame:
    """Train a small VGG on the digits by weights and by scales, SGD with momentum and weight decay; losses and gradients by step.

    The scales twice: of the pairs as they stand, and of the pairs collapsed, which long trainings use.
    """
    torch.manual_seed(0)
    data = load(DataSpec("digits", crop_padding=0, flip=False))
    weights = vgg(data.shape, len(data.classes), 8, [1, 2], "relu").to(dtype)
    networks = {"weights": weights} | {
        name: reparameterized(weights, name == "collapsed") for name in SCALES
    }
    optimizers = {
        name: torch.optim.SGD(net.parameters(), 0.05, 0.9, weight_decay=5e-4)
        for name, net in networks.items()
    }
    convolutions = [module for module in weights.modules() if isinstance(module, nn.Conv2d)]
    lines, epoch = [], 0
    while len(lines) < steps:
        for x, y in data.train_batches(BATCH, 0, epoch, torch.device("cpu")):
            line = {"step": len(lines) + 1, "precision": str(dtype).removeprefix("torch.")}
            for name, network in networks.items():
                optimizers[name].zero_grad()
                loss = F.cross_entropy(network(x.to(dtype)), y)
                loss.backward()
                line[f"loss, {name}"] = loss.item()
            for name in SCALES:
                pairs = [
                    module
                    for module in networks[name].modules()
                    if isinstance(module, CollapsedPair)
                ]
                line[f"gradients apart, {name}"] = max(
                    float(
                        (c.weight.grad.permute(0, 2, 3, 1).flatten() - p.gamma.grad).norm()
                        / c.weight.grad.norm()
                    )
                    for c, p in zip(convolutions, pairs, strict=True)
                )
            for optimizer in optimizers.values():
                optimizer.step()
            lines.append(line)
            if len(lines) == steps:
                break
        epoch += 1
    return pd.DataFrame(lines)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line an arithmetic and way of computing the pairs: how far losses and gradients are from the weights'."""
    lines = []
    for (precision, group), name in itertools.product(
        frame.groupby("precision", sort=False), SCALES
    ):
        apart, gradients = (
            (group["loss, weights"] - group[f"loss, {name}"]).abs(),
            group[f"gradients apart, {name}"],
        )
        lines.append(
            {
                "precision": precision,
                "pairs": name,
                "steps": len(group),
                "first loss": f"{group['loss, weights'].iloc[0]:.3f}",
                "last loss": f"{group['loss, weights'].iloc[-1]:.3f}",
                "losses apart, at most": f"{apart.max():.1e}",
                "first gradients apart": f"{gradients.iloc[0]:.1e}",
                "in 100 steps, at most": f"{gradients.iloc[:100].max():.1e}",
                "in all": f"{gradients.max():.1e}",
            }
        )
    return pd.DataFrame(lines)


def draw(frame: pd.DataFrame, file: io.BytesIO, kind: str) -> None:
    """The losses, one over the other, and how far apart gradients are."""
    with canvas(file, kind, 1, 2, figsize=(9, 3.6)) as (figure, (left, right)):
        part = frame[frame["precision"] == "float64"]
        left.plot(part["step"], part["loss, weights"], color="#4c72b0", label="weights")
        left.plot(
            part["step"],
            part["loss, as they stand"],
            color="#c44e52",
            linestyle="--",
            label="ID cond scales, pairs as they stand",
        )
        left.set_ylabel("training loss (float64)")
        for (precision, group), colour in zip(
            frame.groupby("precision", sort=False), ("#4c72b0", "#dd8452"), strict=False
        ):
            for name, style in zip(SCALES, ("-", ":"), strict=True):
                label = f"{precision}, pairs {name}"
                right.plot(
                    group["step"],
                    group[f"gradients apart, {name}"],
                    color=colour,
                    linestyle=style,
                    label=label,
                )
        right.set_yscale("symlog", linthresh=1e-17)  # where they are the same to the bit it shows 0
        right.set_ylim(-1e-18, 10)
        right.set_ylabel("relative difference of gradients")
        for axes in (left, right):
            axes.set_xlabel("step")
            axes.legend(fontsize=8)
