"""How long a run will take, roughly: operations over a measured rate."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from bnrecon.reconstruction.attention import unpack
from bnrecon.reconstruction.geometry import geometry_of, pad
from bnrecon.reconstruction.kernels import LAYERS, Layer
from bnrecon.reconstruction.plan import Plan, PlannedLayer
from bnrecon.reconstruction.substitution import share_parameters, substitute, uncompiled
from bnrecon.runtime.precision import precision_schedule
from bnrecon.solvers import SolverSpec
from bnrecon.solvers.iterative import expected_iterations, integers_pay
from bnrecon.solvers.krylov import MOST_ITERATIONS
from bnrecon.solvers.lbfgs import MAX_ITERATIONS

# Of the matrices whose product is timed. To launch one of 1,024 takes a GPU longer than to do it.
SIDES = {"cpu": 1024, "cuda": 4096}
REGENERATION = 1.2  # times a product with stored features (scripts/bench_storage.py)
# In float64: corrections and checks of the solve, the errors of the layer as it is built and as it
# comes back from its file, its collapsed form.
EXACT_PRODUCTS = 13
EXACT_BESIDE_INTEGERS = 8  # one correction is enough


class Positions(NamedTuple):
    """How many positions a layer has for one image.

    Args:
        inside: of its padded input, which the pair's first convolution moves over.
        out: of its output, which the pair's second one does.
        applied: at which each of its own weights is applied once: those of the output or, of a
            transposed convolution, of the input.
    """

    inside: int
    out: int
    applied: int


def rate(dtype: torch.dtype, device: torch.device) -> float:
    """Operations a second of a matrix product in this precision, measured now.

    Of a processor that others use too it is the rate that it has alone: its own time counts.
    """
    side = SIDES[device.type]
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    multiply = torch._int_mm if dtype == torch.int8 else torch.matmul
    best = math.inf
    for _ in range(3):
        started, spent = time.perf_counter(), time.process_time()
        float(multiply(a, b)[0, 0])  # waits for the GPU
        best = min(best, time.perf_counter() - started)
        if device.type == "cpu":
            best = min(best, (time.process_time() - spent) / torch.get_num_threads())
    return 2 * side**3 / best


def pixels(network: nn.Module, shape: tuple[int, int, int]) -> dict[str, Positions]:
    """Where each layer that can be rebuilt is applied, for one image: by its name in the source.

    The positions of a layer that is called several times are added up; one that is not called has
    none.

    >>> network = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2, padding=1))
    >>> pixels(network, (3, 8, 8))
    {'0': Positions(inside=100, out=16, applied=16)}
    """
    running = unpack(share_parameters(uncompiled(network)), substitute)
    layers = {name: part for name, part in running.named_modules() if isinstance(part, LAYERS)}
    positions = dict.fromkeys(layers, Positions(0, 0, 0))

    def add(name: str, module: Layer, inputs: tuple, named: dict, output: torch.Tensor) -> None:
        seen = _positions(module, inputs[0] if inputs else named["input"], output)
        positions[name] = Positions(*map(sum, zip(positions[name], seen, strict=True)))

    for name, module in layers.items():
        module.register_forward_hook(partial(add, name), with_kwargs=True)
    first = next(running.parameters())
    with torch.inference_mode():
        running(torch.zeros(1, *shape, device=first.device, dtype=first.dtype))
    return positions


def _positions(module: Layer, given: torch.Tensor, output: torch.Tensor) -> Positions:
    """The positions of one call."""
    geometry = geometry_of(module)
    dims = geometry.dims
    if not dims:
        rows = given.shape[:-1].numel()
        return Positions(rows, rows, rows)
    images = len(given) if given.ndim == dims + 2 else 1
    single = given.reshape(images, *given.shape[-dims - 1 :])
    padded = pad(single[:1, :1], geometry, output.shape[-dims:])
    out = output.shape[-dims:].numel()
    taken = given.shape[-dims:].numel() if geometry.spread else out
    return Positions(images * padded.numel(), images * out, images * taken)


def multiply_adds(network: nn.Module, places: Mapping[str, Positions]) -> int:
    """Multiply-adds of one image's forward pass through the convolutions and linear layers."""
    modules = dict(unpack(uncompiled(network), substitute).named_modules())
    return sum(modules[name].weight.numel() * where.applied for name, where in places.items())


def source_flops(plan: Plan, places: Mapping[str, Positions]) -> int:
    """Operations of one image's forward pass through the source network.

    Implicit id_cond layers cost what the target's do. A transposed convolution's pair moves over
    the zeros in between, too.
    """
    total = 0
    for layer in plan.layers:
        inside, out, _ = places[layer.name]
        shape = layer.shape
        if layer.implicit:
            each = shape.equations * out
        else:
            each = layer.width * (inside * shape.inputs + out * shape.outputs * shape.taps)
        total += 2 * layer.groups * each
    return total


def testing_seconds(source: int, target: int, tested: int, images: int, operations: float) -> float:
    """Seconds to test a source network.

    Args:
        source: operations of the source network for one image.
        target: multiply-adds of the target for one image.
        tested: how many images go through the source network.
        images: how many go through the target and through the source's collapsed form.
        operations: a second, of float32 products.
    """
    return (tested * source + images * 2 * 2 * target) / (0.8 * operations)


def training_seconds(per_image: int, images: int, operations: float) -> float:
    """Forward and backward are three passes; small layers add about 0.1 ms an image."""
    return images * (6 * per_image / (0.85 * operations) + 1e-4)


def solving_seconds(plan: Plan, spec: SolverSpec, device: torch.device) -> dict[str, float]:
    """Seconds to solve, build and verify each layer of a plan."""
    kinds = {torch.float32, torch.float64, precision_schedule(device)[0].factors}
    if any(_in_integers(layer, device) for layer in plan.layers):
        kinds.add(torch.int8)
    rates = {kind: rate(kind, device) for kind in kinds}
    return {
        layer.name: layer.groups * _group_seconds(layer, spec, device, rates)
        for layer in plan.layers
    }


def _in_integers(layer: PlannedLayer, device: torch.device) -> bool:
    """Whether a layer's iterations multiply in 8-bit integers, as far as its name tells.

    A user's own signs are found by their values, when they are solved.
    """
    name = layer.features.name
    signs = name == "sign" or (name == "er_sign" and layer.storage == "memory")
    signs = signs and layer.width >= layer.shape.equations
    pays = integers_pay(layer.rows, layer.width, device)
    return signs and layer.choice.solver == "matrix_free" and pays


def _group_seconds(
    layer: PlannedLayer, spec: SolverSpec, device: torch.device, rates: Mapping[torch.dtype, float]
) -> float:
    """Seconds for one group of a layer.

    Matrix-free: ln(1/tol) / (½ ln(c1/n)) iterations of two products; otherwise an LU of (2/3) n³.
    """
    shape, c1 = layer.shape, layer.width
    n = max(1, layer.rows)  # beside a skip connection there may be none
    name = layer.choice.solver
    single = rates[torch.float32]
    integers = _in_integers(layer, device)
    exact_products = EXACT_BESIDE_INTEGERS if integers else EXACT_PRODUCTS
    exact = exact_products * 2 * n * c1 / (0.9 * rates[torch.float64])
    if name == "closed_form":
        return 16 * n * (shape.inputs + shape.outputs * shape.taps) / single
    if name in ("matrix_free", "minimum_norm", "lbfgs"):
        limit = spec.max_iterations or (MAX_ITERATIONS if name == "lbfgs" else MOST_ITERATIONS)
        iterations = min(limit, expected_iterations(c1 / n, spec.tolerance))
        if integers:  # regenerated or not: n = 36,864 to 589,824, scripts/bench_storage.py
            return exact + iterations * 4 * n * c1 / (0.7 * rates[torch.int8])
        products = 4 * n * c1 * (REGENERATION if layer.storage == "regenerate" else 1)
        fast = single if name == "lbfgs" else rates[precision_schedule(device)[0].factors]
        return exact + iterations * products / (0.65 * fast)
    if name in ("least_squares", "svd_lbfgs", "svd_lu_lbfgs"):
        return exact + 12 * n * n * c1 / (0.3 * single)
    return exact + 2 / 3 * n**3 / ((0.35 if name == "lu" else 0.7) * single)
