"""Two random layers for each layer of a ReLU network.

Giannou et al. 2023, Theorem 1, Corollary 1 and Theorem 3.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from bnrecon.construction.random_linear import random_linear, random_norm, set_affine, solve_scales
from bnrecon.construction.relu_target import LinearTarget, copy_in_float64, read_relu_network
from bnrecon.features.portable_random import Stream
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.hardware import available_memory
from bnrecon.runtime.options import checked, checked_seed
from bnrecon.runtime.torch_modes import outside_torch_modes
from bnrecon.runtime.units import format_bytes

NOTED, FAR = 1e-3, 0.1  # functional errors: above the first a note, above the second an error


@dataclass(frozen=True)
class RebuiltLayer:
    """One target layer: its size, the random layers' width, and ||V diag(γ) W - W*|| / ||W*||.

    ``radius`` bounds the norm of inputs for which all inner ReLUs stay open.
    """

    name: str
    inputs: int
    outputs: int
    width: int
    radius: float
    relative_error: float


@dataclass(frozen=True)
class RebuiltNetwork:
    """A random network that computes the target's function on ||x|| <= ``radius``.

    ``network`` is in eval mode and takes float64 inputs (batch, inputs). Its frozen statistics are
    part of the construction: a forward pass in training mode (``.train()``) overwrites them.

    ``functional_error`` is the largest difference of an output over 1,024 inputs in that ball,
    relative to the target's largest output there, both networks in float64. ``notes`` says if it is
    above 0.1%.
    """

    network: nn.Sequential
    layers: tuple[RebuiltLayer, ...]
    radius: float
    functional_error: float
    notes: tuple[str, ...] = ()


@outside_torch_modes
def relu_network(
    model: nn.Sequential,
    *,
    width: int | None = None,
    rank: int | None = None,
    density: float = 1.0,
    radius: float = 1.0,
    seed: int = 0,
) -> RebuiltNetwork:
    """Rebuild a ReLU network of linear layers by the normalizations of a random one (Theorem 1).

    A target layer W* (m, k) becomes a random W (c, k), a normalization whose shift opens all ReLUs,
    a ReLU, a random V (m, c), and a normalization that removes the shift. The scales γ of the first
    normalization solve V diag(γ) W = W*: m k equations, c = m k scales. The result has
    ``BatchNorm1d`` modules with random frozen statistics (Lemma 7) and is float64.

    Args:
        model: ``nn.Sequential`` of ``Linear``, ``BatchNorm1d`` (eval mode) and ``ReLU``.
        width: c of every layer; m k by default. With fewer, the pseudo-inverse's scales are the
            best least-squares approximation, as in Figure 4 (right), however large its error.
        rank: factorize each target layer into (m, rank) (rank, k) and rebuild both factors: four
            layers of width rank · max(m, k) at most (Corollary 1).
        density: share of nonzero entries of the random weights (Theorem 3).
        radius: the network is rebuilt for inputs ||x|| <= ``radius``; later layers use R <- ||W*||
            R + ||b*||.
        seed: the seed of all weights and statistics.

    Returns:
        The random network, a report for each layer, and the error of the function.

    Raises:
        UserError: the model is not of this form, an option is out of range, a layer's rank is above
            ``rank`` (beyond the rounding of the weights' dtype), or a layer's dense system of m k
            equations does not fit into memory.
        RunError: the error of the function is above 10%, unless ``width`` is below m k;
            ``error.reconstruction`` has the result.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    >>> rebuilt = relu_network(net, seed=0)
    >>> [layer.width for layer in rebuilt.layers], rebuilt.functional_error < 1e-9
    ([12, 8], True)
    """
    targets, original = read_relu_network(model), copy_in_float64(model)
    width = None if width is None else checked("width", width, int, at_least=1)
    rank = None if rank is None else checked("rank", rank, int, at_least=1)
    density = checked("density", density, float, above=0, at_most=1)
    radius, seed = checked("radius", radius, float, above=0), checked_seed(seed)
    stages = [stage for target in targets for stage in _stages(target, rank)]
    for target, _ in stages:
        equations = target.weight.numel()
        remedy = "give a smaller width, or a rank"
        require_memory(target.name, equations, width or equations, remedy)
    modules: list[nn.Module] = []
    reports = []
    reach, offset = radius, None
    for number, (target, follows) in enumerate(stages):
        stream = Stream(seed, number)
        pair, report, offset = _two_layers(target, width, density, reach, offset, follows, stream)
        modules += pair
        reports.append(report)
        reach = target.next_radius(reach)
        if number + 1 < len(stages):
            modules.append(nn.ReLU())
    if isinstance(list(model)[-1], nn.ReLU):
        modules.append(nn.ReLU())
    network = nn.Sequential(*modules).eval()
    error = functional_error(network, original, targets[0].weight.shape[1], radius, seed)
    most = max(target.weight.numel() for target, _ in stages)
    limit = FAR if width is None or width >= most else math.inf
    rebuilt = RebuiltNetwork(network, tuple(reports), radius, error)
    errors = [report.relative_error for report in reports]
    return check_error(rebuilt, errors, "a larger width or density", limit)


def require_memory(name: str, equations: int, scales: int, remedy: str) -> None:
    """Raise ``UserError`` if a layer's dense float64 system and its factors do not fit."""
    needed, free = 2 * 8 * equations * scales, available_memory(torch.device("cpu"))
    if needed > free:
        raise UserError(
            f"layer {name}: {equations} equations for {scales} scales need {format_bytes(needed)}, "
            f"{format_bytes(free)} are available; {remedy}"
        )


def check_error(
    rebuilt: Any, layer_errors: Sequence[float], remedy: str, limit: float = FAR
) -> Any:
    """Add a note on outputs off by over 0.1%; raise ``RunError`` above ``limit``."""
    error = rebuilt.functional_error
    if error <= NOTED:
        return rebuilt
    note = (
        f"outputs are off by {error:.1e} of the model's largest, weights of layers by up to "
        f"{max(layer_errors):.1e} of their norm: if both are large, give {remedy}; if only "
        "outputs are, give a smaller radius, or the model computes more than its layers do"
    )
    rebuilt = dataclasses.replace(rebuilt, notes=(note,))
    if error <= limit:
        return rebuilt
    failure = RunError(note)
    failure.reconstruction = rebuilt
    raise failure


def low_rank_factors(
    weight: torch.Tensor, rank: int, name: str = "", dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """W* = A* B* by singular values: A* (m, rank), B* (rank, k).

    Singular values below the rounding of ``dtype``, in which W* was computed, count as zero.

    Raises ``UserError`` if W* has a higher rank.

    >>> a, b = low_rank_factors(torch.ones(3, 3, dtype=torch.float64), 1)
    >>> bool(torch.allclose(a @ b, torch.ones(3, 3, dtype=torch.float64)))
    True
    """
    left, values, right = torch.linalg.svd(weight, full_matrices=False)
    least = max(1e-12, max(weight.shape) * torch.finfo(dtype).eps) * float(values[0])
    if rank < len(values) and float(values[rank]) > least:
        real = int((values > least).sum())
        raise UserError(f"rank={rank}: layer {name} has rank {real}; give at least that")
    root = values[:rank].sqrt()
    return left[:, :rank] * root, root[:, None] * right[:rank]


def _stages(target: LinearTarget, rank: int | None) -> list[tuple[LinearTarget, bool]]:
    """The stages of rebuilding a target layer, and whether another linear stage follows each."""
    if rank is None:
        return [(target, False)]
    outer, inner = low_rank_factors(target.weight, rank, target.name, target.dtype)
    first = LinearTarget(f"{target.name}, first factor", inner, torch.zeros(len(inner)).double())
    second = LinearTarget(f"{target.name}, second factor", outer, target.bias)
    return [(first, True), (second, False)]


def _two_layers(
    target: LinearTarget,
    width: int | None,
    density: float,
    radius: float,
    offset: torch.Tensor | None,
    follows: bool,
    stream: Stream,
) -> tuple[list[nn.Module], RebuiltLayer, torch.Tensor | None]:
    """Two random layers that compute ``target`` for ||x|| <= ``radius``, with their report.

    ``offset`` (k,) is what the input contains besides x; if ``follows``, the outputs contain the
    returned shift, which opens the next ReLU.
    """
    outputs, inputs = target.weight.shape
    count = outputs * inputs if width is None else width
    first = random_linear(inputs, count, stream, "first", density)
    second = random_linear(count, outputs, stream, "second", density)
    w, v = first.weight, second.weight
    scale = solve_scales(v, w, target.weight)
    # The smallest shift that opens the ReLU of γ w.x: |γ| ||w|| R; the proof uses a bound of it.
    opening = scale.abs() * w.norm(dim=1) * radius
    inside, outside = random_norm(count, stream, "first"), random_norm(outputs, stream, "second")
    carried = torch.zeros_like(opening) if offset is None else scale * (w @ offset)
    set_affine(inside, scale, opening - carried)
    lift = target.weight.norm(dim=1) * radius if follows else None
    shift = target.bias - v @ opening + (0 if lift is None else lift)
    set_affine(outside, torch.ones(outputs, dtype=torch.float64), shift)
    norm = float(target.weight.norm())
    error = float(((v * scale) @ w - target.weight).norm()) / (norm or 1.0)
    report = RebuiltLayer(target.name, inputs, outputs, count, radius, error)
    return [first, inside, nn.ReLU(), second, outside], report, lift


def functional_error(
    network: nn.Module, target: nn.Module, inputs: int, radius: float, seed: int
) -> float:
    """The largest difference of an output, relative to ``target``'s largest output if not zero.

    Over 1,024 inputs of ||x|| <= ``radius``, half of them on the sphere. The target, the user's
    model by ``copy_in_float64``, computes its outputs itself, which also tests how it was read.
    """
    stream = Stream(seed, 0)  # not torch's, from whose seed the target's weights may come
    x = stream.normal((1024, inputs), "test inputs").double()
    x *= radius / x.norm(dim=1, keepdim=True)
    x[:512] *= stream.uniform((512, 1), "test radii").double().abs() ** (1 / inputs)
    with torch.no_grad():
        expected = target(x)
        largest = float(expected.abs().max()) or 1.0
        return float((network(x) - expected).abs().max()) / largest
