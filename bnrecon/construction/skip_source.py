"""Narrow, deep random networks with skip connections (Giannou et al. 2023, Theorem 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from bnrecon.construction.random_linear import (
    khatri_rao,
    random_linear,
    random_norm,
    scale_of,
    set_affine,
    solve_scales,
)
from bnrecon.construction.relu_source import check_error, functional_error, require_memory
from bnrecon.construction.relu_target import LinearTarget, copy_in_float64, read_relu_network
from bnrecon.features.portable_random import Stream
from bnrecon.runtime.options import checked, checked_seed
from bnrecon.runtime.torch_modes import outside_torch_modes

BLOCKS = 4  # per layer, by default


@dataclass(frozen=True)
class RebuiltSegment:
    """One block of columns of one target layer, solved by one layer of the chain.

    ``relative_error`` is ||P diag(γ) W A - W*_i|| / ||W*_i|| with P all that follows; ``condition``
    is the 2-norm condition number of the system for γ, ``None`` if not requested.
    """

    name: str
    block: int
    width: int
    relative_error: float
    condition: float | None


@dataclass(frozen=True)
class RebuiltChain:
    """A narrow random network that computes the target's function on ||x|| <= ``radius``.

    ``network`` is in eval mode and takes float64 inputs (batch, inputs). Its frozen statistics are
    part of the construction: a forward pass in training mode (``.train()``) overwrites them.
    ``functional_error`` and ``notes`` are those of ``RebuiltNetwork``.
    """

    network: nn.Sequential
    segments: tuple[RebuiltSegment, ...]
    radius: float
    functional_error: float
    notes: tuple[str, ...] = ()


class Segment(nn.Module):
    """One layer of a chain, x -> Γ W (x + A z) + β for its block z of the input.

    ``lift`` is A (c, k), ``mix`` is W (c, c), both frozen; ``norm`` holds Γ and β.
    """

    lift: nn.Linear
    mix: nn.Linear
    norm: nn.BatchNorm1d

    def __init__(self, size: int, width: int, stream: Stream, number: int):
        super().__init__()
        self.lift = random_linear(size, width, stream, f"A{number}")
        self.mix = random_linear(width, width, stream, f"W{number}")
        self.norm = random_norm(width, stream, f"norm{number}")

    def forward(self, block: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        """(batch, k) and, after the first segment, (batch, c) -> (batch, c)."""
        lifted = self.lift(block)
        return self.norm(self.mix(lifted if x is None else x + lifted))


class SkipChain(nn.Module):
    """The random layers that compute one target layer.

    z_1 ... z_K are the blocks of its input, with coordinates ``columns``.

    L_1 = Γ_1 W_1 A_1 z_1 + β_1, L_i = Γ_i W_i (σ(L_(i-1)) + A_i z_i) + β_i, and finally W L_K. The
    paper omits A_1; without it the sizes of W_1 and z_1 do not fit.
    """

    out: nn.Linear

    columns: torch.Tensor

    def __init__(
        self, columns: torch.Tensor, sizes: list[int], outputs: int, width: int, stream: Stream
    ):
        super().__init__()
        self.sizes = sizes
        self.register_buffer("columns", columns)
        self.chain = nn.ModuleList(
            Segment(size, width, stream, number) for number, size in enumerate(sizes)
        )
        self.out = random_linear(width, outputs, stream, "out")

    def segments(self) -> list[Segment]:
        """The layers L_1 ... L_K."""
        return [module for module in self.chain if isinstance(module, Segment)]

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """(batch, inputs) -> (batch, outputs)."""
        x: torch.Tensor | None = None
        for segment, block in zip(
            self.segments(), z[:, self.columns].split(self.sizes, dim=1), strict=True
        ):
            x = segment(block, None if x is None else torch.relu(x))
        return self.out(x)


def block_sizes(inputs: int, block: int) -> list[int]:
    """Sizes of an input's blocks: the first is smaller if they do not divide it.

    The first block's scales are computed last and nothing depends on them.

    >>> block_sizes(8, 4), block_sizes(7, 3)
    ([4, 4], [1, 3, 3])
    """
    whole, rest = divmod(inputs, block)
    return ([rest] if rest else []) + [block] * whole


@outside_torch_modes
def skip_chain(
    model: nn.Sequential,
    block: int | None = None,
    *,
    radius: float = 1.0,
    seed: int = 0,
    refinements: int = 2,
    conditions: bool = False,
) -> RebuiltChain:
    """Rebuild a ReLU network by the normalizations of a narrow, deep random one (Theorem 2).

    A target layer W* (m, k) is cut into K = ceil(k / block) blocks of columns. Each gets one layer
    of width m · block, whose scales are computed from the last block to the first:

        P_i diag(γ_i) (W_i A_i) = W*_i   with   P_i = W Γ_K W_K ... Γ_(i+1) W_(i+1).

    The shifts open all inner ReLUs, and the next shifts remove their effect. P_i is a product of
    ever more random factors: the systems' condition grows with K, and float64 limits it.

    Args:
        model: ``nn.Sequential`` of ``Linear``, ``BatchNorm1d`` (eval mode) and ``ReLU``.
        block: size of the input blocks, the theorem's k: 1 gives the deepest and narrowest network,
            the number of inputs gives one layer of full width. By default a quarter of each layer's
            inputs, rounded up: float64 suffices for so few blocks.
        radius: the network is rebuilt for ||x|| <= ``radius``, propagated as in ``relu_network``.
        seed: the seed of all weights and statistics.
        refinements: corrections of each LU solution.
        conditions: whether to compute each system's condition number.

    Returns:
        The random network, a report for each segment, and the error of the function.

    Raises:
        UserError: the model is not of this form, an option is out of range, or a dense system of (m
            · block)² numbers does not fit into memory.
        RunError: the error of the function is above 10%; ``error.reconstruction`` has the result.

    >>> net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    >>> rebuilt = skip_chain(net, block=2, seed=0)
    >>> [segment.width for segment in rebuilt.segments], rebuilt.functional_error < 1e-9
    ([8, 8, 4, 4], True)
    """
    targets, original = read_relu_network(model), copy_in_float64(model)
    radius, seed = checked("radius", radius, float, above=0), checked_seed(seed)
    refinements = checked("refinements", refinements, int, at_least=0)
    sides = [target.weight.shape[1] for target in targets]
    if block is None:
        blocks = [-(-side // BLOCKS) for side in sides]
    else:
        blocks = [checked("block", block, int, at_least=1, at_most=min(sides))] * len(sides)
    for target, columns in zip(targets, blocks, strict=True):
        size = columns * len(target.weight)
        require_memory(target.name, size, size, "give a smaller block")
    modules: list[nn.Module] = []
    segments: list[RebuiltSegment] = []
    reach = radius
    for number, target in enumerate(targets):
        chain = skip_chain_of(target, blocks[number], Stream(seed, number))
        segments += _set_scales(chain, target, refinements, conditions)
        _set_shifts(chain, target, reach)
        reach = target.next_radius(reach)
        modules += [chain, nn.ReLU()]
    if not isinstance(list(model)[-1], nn.ReLU):
        modules.pop()
    network = nn.Sequential(*modules).eval()
    error = functional_error(network, original, sides[0], radius, seed)
    rebuilt = RebuiltChain(network, tuple(segments), radius, error)
    return check_error(rebuilt, [s.relative_error for s in segments], "a larger block")


def skip_chain_of(target: LinearTarget, block: int, stream: Stream) -> SkipChain:
    """Draw the random layers for a target layer.

    Inputs whose column of W* is zero get no block. The theorem is false with one: Γ_i = 0 is the
    only solution for a block of zeros and cuts off every earlier layer.
    """
    outputs, inputs = target.weight.shape
    used = target.weight.abs().sum(dim=0).nonzero()[:, 0]
    columns = used if len(used) else torch.arange(inputs)
    sizes = block_sizes(len(columns), min(block, len(columns)))
    return SkipChain(columns, sizes, outputs, outputs * block, stream)


def _set_scales(
    chain: SkipChain, target: LinearTarget, refinements: int, conditions: bool
) -> list[RebuiltSegment]:
    """Compute Γ_K ... Γ_1 and store them in the normalizations, whose shifts are set later."""
    after: torch.Tensor = chain.out.weight
    rebuilt = []
    columns = target.weight[:, chain.columns].split(chain.sizes, dim=1)
    segments = chain.segments()
    for i in reversed(range(len(segments))):
        segment, column = segments[i], columns[i]
        before = segment.mix.weight @ segment.lift.weight
        scale = solve_scales(after, before, column, refinements)
        set_affine(segment.norm, scale, torch.zeros_like(scale))
        error = float(((after * scale) @ before - column).norm() / (float(column.norm()) or 1.0))
        condition = float(torch.linalg.cond(khatri_rao(after, before))) if conditions else None
        rebuilt.append(RebuiltSegment(target.name, i, len(scale), error, condition))
        after = (after * scale) @ segment.mix.weight
    return rebuilt[::-1]


def _set_shifts(chain: SkipChain, target: LinearTarget, radius: float) -> None:
    """Open every inner ReLU on ||z|| <= ``radius`` and remove the openings' effect.

    L_i is linear in z up to its opening t_i, the norm of its rows times the radius: β_i = t_i -
    Γ_i W_i t_(i-1). The last layer has no ReLU: its β is the shortest with W β = b*, minus the
    effect of t_(K-1).
    """
    linear = torch.zeros(chain.out.in_features, 0, dtype=torch.float64)
    opening = torch.zeros(chain.out.in_features, dtype=torch.float64)
    segments = chain.segments()
    for i, segment in enumerate(segments):
        scale = scale_of(segment.norm)
        mix = segment.mix.weight
        linear = scale[:, None] * (mix @ torch.cat([linear, segment.lift.weight], dim=1))
        carried = scale * (mix @ opening)
        if i + 1 < len(segments):
            opening = linear.norm(dim=1) * radius
        else:
            opening = torch.linalg.pinv(chain.out.weight) @ target.bias
        set_affine(segment.norm, scale, opening - carried)
