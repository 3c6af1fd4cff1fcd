"""Theorem 2.4 of Burkholz 2024 on a trained target's real activations: the error of each layer against the epsilon asked for."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence

import pandas as pd
import torch
from torch import nn
from tqdm import tqdm

from bnrecon.reconstruction.assembly import reconstruct
from bnrecon.reconstruction.folding import FoundLayer, find_layers
from bnrecon.reporting.figures import canvas
from bnrecon.reproduction.trainings import target_of
from bnrecon.runtime.hardware import exact_float32

__all__ = ["draw", "errors", "summary"]


TARGETS = {
    "smoke": ("data=digits", "target=vgg_small", "scale=smoke"),
    "laptop": ("target=vgg18", "scale=laptop", "target.width=16"),
    "paper": ("target=vgg18", "scale=paper", "target.width=64"),
}


EPSILONS = (1e3, 1e2, 1e1, 1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


TRAINING_IMAGES, TEST_IMAGES = 1024, {"smoke": 16, "laptop": 16, "paper": 16}


MARGIN = 2.0


def errors(scale: str, words: Sequence[str] = ()) -> pd.DataFrame:
    """Rebuild each layer alone, with each activation and epsilon, in float64 and float32, and compare it with the target's layer.

    ``error`` is max |S(x) - C(x)| over the layer's inputs on test images; ``outside`` counts intermediate values beyond the range taken
    from training images.
    """
    trained, data, device = target_of([*TARGETS[scale], *words])
    target = trained.network
    layers = find_layers(target).layers
    seen = torch.cat(list(data.plain_train_batches(256, device, TRAINING_IMAGES)))
    tested = torch.cat(
        [x for x, _ in data.test_batches(TEST_IMAGES[scale], device, limit=TEST_IMAGES[scale])]
    )
    training, testing = _inputs(target, layers, seen), _inputs(target, layers, tested)
    lines = []
    for found in tqdm(layers, desc="layers", disable=None):
        for dtype in (torch.float64, torch.float32):
            lines += _of_one_layer(found, training[found.name], testing[found.name], dtype)
    return pd.DataFrame(lines)


def _of_one_layer(
    found: FoundLayer, training: torch.Tensor, testing: torch.Tensor, dtype: torch.dtype
) -> list[dict]:
    alone = _alone(found, dtype)
    x, solved, lines = testing.to(dtype), {}, []
    with torch.inference_mode(), exact_float32():
        wanted = alone(x)
    for name in ("relu", "leaky_relu", "tanh", "sigmoid"):
        for epsilon in EPSILONS if name in ("tanh", "sigmoid") else (0.0,):
            keep = lambda report, solution: solved.update({report.name: solution})  # noqa: E731
            layer = reconstruct(
                alone,
                images=training.to(dtype),
                activation=name,
                epsilon=epsilon or 1.0,
                margin=MARGIN,
                solved=solved,
                on_layer=keep,
            ).network
            with torch.inference_mode(), exact_float32():
                error = float((layer(x) - wanted).abs().max())
            lines.append(
                {
                    "layer": found.name,
                    "activation": name,
                    "epsilon": epsilon,
                    "precision": str(dtype).removeprefix("torch."),
                    "error": error,
                    "largest output": float(wanted.abs().max()),
                    "outside": layer.outside,
                }
            )
    return lines


def _alone(found: FoundLayer, dtype: torch.dtype) -> nn.Module:
    """The layer with its normalization folded in, as a module of its own."""
    module = copy.deepcopy(found.module).to(dtype)
    weight = (
        found.target.weight if isinstance(module, nn.Conv2d) else found.target.weight[:, :, 0, 0]
    )
    module.weight = nn.Parameter(weight.to(dtype))
    module.bias = nn.Parameter(found.target.bias.to(dtype))
    return module.eval()


def _inputs(
    network: nn.Module, layers: list[FoundLayer], images: torch.Tensor
) -> dict[str, torch.Tensor]:
    """What each layer is given when the network sees these images."""
    held: dict[str, torch.Tensor] = {}
    handles = [
        found.module.register_forward_pre_hook(
            lambda module, inputs, name=found.name: held.__setitem__(name, inputs[0].clone())
        )
        for found in layers
    ]
    with torch.inference_mode(), exact_float32():
        network(images)
    for handle in handles:
        handle.remove()
    return {name: value.clone() for name, value in held.items()}


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line an activation and epsilon: the worst layer in both arithmetics, and whether the bound holds."""
    lines = []
    for (name, epsilon), group in frame.groupby(["activation", "epsilon"], sort=False):
        worst = {
            precision: part["error"].max(skipna=False)
            for precision, part in group.groupby("precision")
        }
        line = {"activation": name, "epsilon": f"{epsilon:.0e}" if epsilon else "exact"}
        line["largest error, float64"] = f"{worst['float64']:.1e}"
        line["largest error, float32"] = f"{worst['float32']:.1e}"
        line["layers within epsilon"] = ""
        if epsilon:
            within = {
                p: f"{int((part['error'] <= epsilon).sum())} of {len(part)}"
                for p, part in group.groupby("precision")
            }
            line["layers within epsilon"] = f"{within['float64']}; float32 {within['float32']}"
        line["values outside the range"] = str(
            int(group.loc[group["precision"] == "float64", "outside"].sum())
        )
        lines.append(line)
    return pd.DataFrame(lines)


def draw(frame: pd.DataFrame, file: io.BytesIO, kind: str) -> None:
    """Error of every layer against epsilon, in both arithmetics, with the bound."""
    with canvas(file, kind, 1, 2, figsize=(9, 4), sharey=True) as (figure, grid):
        for axes, name in zip(grid, ("tanh", "sigmoid"), strict=True):
            for precision, colour in (("float64", "#4c72b0"), ("float32", "#c44e52")):
                part = frame[(frame["activation"] == name) & (frame["precision"] == precision)]
                axes.loglog(part["epsilon"], part["error"], ".", color=colour, alpha=0.4)
                worst = part.groupby("epsilon")["error"].max()
                axes.loglog(worst.index, worst, color=colour, label=f"{precision}, worst layer")
            axes.loglog(EPSILONS, EPSILONS, "--", color="grey", label="the bound")
            axes.set_title(name)
            axes.set_xlabel("epsilon asked for")
        grid[0].plot([], [], ".", color="grey", label="a layer")
        grid[0].set_ylabel("largest error of a layer's outputs")
        grid[0].legend(fontsize=8)
