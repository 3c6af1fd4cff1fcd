"""Theorem 3.1 of Random features for normalization layers: training ID cond scales is training the weights, step by step."""

from __future__ import annotations

import copy
import io

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.data import DataSpec, load
from bnrecon.features import LayerShape
from bnrecon.figures import canvas
from bnrecon.targets.models import vgg
from bnrecon.targets.normalization_only import CollapsedPair

__all__ = ["draw", "reparameterized", "summary", "trained_together"]

STEPS = {"smoke": 10, "laptop": 200, "paper": 500}
BATCH = 64


def reparameterized(network: nn.Module) -> nn.Module:
    """A copy whose convolutions are id_cond pairs with scale-only inner layers, the scales initialised as the weights.

    Feature (i, p, j) reads input j and writes output i at tap p, so that γ is the weight in the order (outputs, taps, inputs).
    """
    network = copy.deepcopy(network)
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, nn.Conv2d):
                outputs, inputs, *kernel = module.weight.shape
                shape = LayerShape(outputs, inputs, tuple(kernel))
                pair = CollapsedPair(shape, shape.equations, "id_cond", "scale", seed=0, number=0).to(module.weight)
                setattr(parent, name, pair.start_from(module.weight))
    return network


def trained_together(dtype: torch.dtype, steps: int) -> pd.DataFrame:
    """Train a small VGG on the digits in both parameterizations, SGD with momentum and weight decay; losses and gradients by step."""
    torch.manual_seed(0)
    data = load(DataSpec("digits", crop_padding=0, flip=False))
    weights = vgg(data.shape, len(data.classes), 8, [1, 2], "relu").to(dtype)
    scales = reparameterized(weights)
    networks = {"weights": weights, "scales": scales}
    optimizers = {name: torch.optim.SGD(net.parameters(), 0.05, 0.9, weight_decay=5e-4) for name, net in networks.items()}
    convolutions = [module for module in weights.modules() if isinstance(module, nn.Conv2d)]
    pairs = [module for module in scales.modules() if isinstance(module, CollapsedPair)]
    lines, epoch = [], 0
    while len(lines) < steps:
        for x, y in data.train_batches(BATCH, 0, epoch, torch.device("cpu")):
            line = {"step": len(lines) + 1, "precision": str(dtype).removeprefix("torch.")}
            for name, network in networks.items():
                optimizers[name].zero_grad()
                loss = F.cross_entropy(network(x.to(dtype)), y)
                loss.backward()
                line[f"loss, {name}"] = loss.item()
            gradients = [
                (c.weight.grad.permute(0, 2, 3, 1).flatten(), p.gamma.grad) for c, p in zip(convolutions, pairs, strict=True)
            ]
            line["gradients differ by"] = max(float((a - b).norm() / a.norm()) for a, b in gradients)
            for optimizer in optimizers.values():
                optimizer.step()
            lines.append(line)
            if len(lines) == steps:
                break
        epoch += 1
    return pd.DataFrame(lines)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line an arithmetic: how far losses and gradients are from each other over all steps."""
    lines = []
    for precision, group in frame.groupby("precision", sort=False):
        apart = (group["loss, weights"] - group["loss, scales"]).abs()
        lines.append({
            "precision": precision, "steps": len(group), "first loss": f"{group['loss, weights'].iloc[0]:.3f}",
            "last loss": f"{group['loss, weights'].iloc[-1]:.3f}", "losses apart, at most": f"{apart.max():.1e}",
            "first gradients apart": f"{group['gradients differ by'].iloc[0]:.1e}",
            "all gradients apart, at most": f"{group['gradients differ by'].max():.1e}",
        })  # fmt: skip
    return pd.DataFrame(lines)


def draw(frame: pd.DataFrame, file: io.BytesIO, kind: str) -> None:
    """Both losses, one over the other, and how far apart gradients are."""
    with canvas(file, kind, 1, 2, figsize=(9, 3.6)) as (figure, (left, right)):
        part = frame[frame["precision"] == "float64"]
        left.plot(part["step"], part["loss, weights"], color="#4c72b0", label="weights")
        left.plot(part["step"], part["loss, scales"], color="#c44e52", linestyle="--", label="ID cond scales")
        left.set_ylabel("training loss")
        for (precision, group), colour in zip(frame.groupby("precision", sort=False), ("#4c72b0", "#c44e52"), strict=False):
            right.plot(group["step"], group["gradients differ by"], color=colour, label=precision)
        right.set_yscale("symlog", linthresh=1e-17)  # where they are the same to the bit it shows 0
        right.set_ylim(-1e-18, 1)
        right.set_ylabel("relative difference of gradients")
        for axes in (left, right):
            axes.set_xlabel("step")
            axes.legend(fontsize=8)
