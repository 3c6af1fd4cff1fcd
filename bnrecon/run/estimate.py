"""How long a run will take, roughly: operations over a measured rate."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping

import torch
from torch import nn

from bnrecon.features.register import distribution
from bnrecon.reconstruction.geometry import geometry_of, pad
from bnrecon.reconstruction.planning import Plan
from bnrecon.runtime.hardware import available_memory
from bnrecon.runtime.precision import precision_schedule
from bnrecon.solvers import choose
from bnrecon.solvers.iterative import expected_iterations

__all__ = [
    "duration",
    "multiply_adds",
    "pixels",
    "rate",
    "solving_seconds",
    "source_flops",
    "training_seconds",
]

REGENERATION = 1.2  # times a product with stored features (scripts/bench_storage.py)


def rate(dtype: torch.dtype, device: torch.device, side: int = 1024) -> float:
    """Operations a second of a matrix product in this precision, measured now."""
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    best = math.inf
    for _ in range(3):
        started = time.perf_counter()
        float((a @ b)[0, 0])  # waits for the GPU
        best = min(best, time.perf_counter() - started)
    return 2 * side**3 / best


def pixels(network: nn.Module, shape: tuple[int, int, int]) -> dict[str, tuple[int, int]]:
    """Positions of each layer's padded input and of its output, for one image."""
    found: dict[str, tuple[int, int]] = {}
    handles = []
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):

            def hook(
                module: nn.Module,
                inputs: tuple[torch.Tensor, ...],
                output: torch.Tensor,
                name: str = name,
            ) -> None:
                if isinstance(module, nn.Linear):
                    found[name] = (
                        inputs[0].numel() // module.in_features,
                        output.numel() // module.out_features,
                    )
                elif isinstance(module, nn.Conv2d):
                    x = pad(inputs[0], geometry_of(module))
                    found[name] = (x.shape[2] * x.shape[3], output.shape[2] * output.shape[3])

            handles.append(module.register_forward_hook(hook))
    training = network.training
    device = next(network.parameters()).device
    with torch.inference_mode():
        network.eval()(torch.zeros(1, *shape, device=device))
    network.train(training)
    for handle in handles:
        handle.remove()
    return found


def multiply_adds(network: nn.Module, places: Mapping[str, tuple[int, int]]) -> int:
    """Multiply-adds of one image's forward pass through the convolutions and linear layers."""
    modules = dict(network.named_modules())
    return sum(modules[name].weight.numel() * out for name, (_, out) in places.items())


def source_flops(plan: Plan, places: Mapping[str, tuple[int, int]]) -> int:
    """Operations of one image's forward pass through the source network.

    Implicit id_cond layers cost what the target's do.
    """
    total = 0
    for layer in plan.layers:
        inside, out = places[layer.found.name]
        shape = layer.found.target.shape
        if layer.implicit:
            total += 2 * shape.equations * out
        else:
            total += 2 * layer.width * (inside * shape.inputs + out * shape.outputs * shape.taps)
    return total


def training_seconds(per_image: int, images: int, operations: float) -> float:
    """Forward and backward are three passes; small layers add about 0.1 ms an image."""
    return images * (6 * per_image / (0.85 * operations) + 1e-4)


def solving_seconds(plan: Plan, solver: str, device: torch.device) -> float:
    """Seconds to solve all layers of a plan.

    Matrix-free: ln(1/tol) / (½ ln(c1/n)) iterations of two products; otherwise an LU of (2/3) n³.
    """
    single = rate(torch.float32, device)
    fast = rate(precision_schedule(device)[0].factors, device)
    total = 0.0
    for layer in plan.layers:
        shape, c1 = layer.shape, layer.width
        n = shape.equations if c1 >= shape.equations else shape.minimum_width
        name = (
            choose(
                n, c1, distribution(layer.features.name).orthogonal, available_memory(device)
            ).solver
            if solver == "auto"
            else solver
        )
        if name == "closed_form":
            total += 16 * n * (shape.inputs + shape.outputs * shape.taps) / single
        elif name in ("matrix_free", "minimum_norm", "lbfgs"):
            iterations = min(50_000, expected_iterations(c1 / n, 1e-10))
            products = 4 * n * c1 * (REGENERATION if layer.regenerated else 1)
            total += iterations * products / (0.6 * (single if name == "lbfgs" else fast))
        elif name in ("least_squares", "svd_lbfgs", "svd_lu_lbfgs"):
            total += 12 * n * n * c1 / (0.3 * single)
        else:
            total += 2 / 3 * n**3 / ((0.35 if name == "lu" else 0.7) * single)
    return total


def duration(seconds: float) -> str:
    """Write a length of time for a person.

    >>> duration(95), duration(4000)
    ('2 min', '67 min')
    """
    if seconds < 60:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
