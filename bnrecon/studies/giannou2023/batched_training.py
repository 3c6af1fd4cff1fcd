"""Many small networks trained at once: runs and learning rates are batch dimensions of one tensor.

The losses of independent networks are summed: one backward pass gives each its gradient.
Shapes: S runs, Q settings of the optimizer, B samples, d inputs, c the source's width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from bnrecon.reproduction.pieces import piece
from bnrecon.studies.giannou2023.teacher import Samples, Sizes, mean_squared_error

MOMENTUM, BATCH = 0.9, 256
ERRORS = "errors"  # stored with the parameters: (Q, 2), on the test and validation samples
EPS, STATISTICS_MOMENTUM = 1e-5, 0.1  # BatchNorm's defaults in PyTorch
# The learning rate's factor after the fraction t of the training.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "cosine": lambda t: 0.5 * (1 + math.cos(math.pi * t)),
    "exponential": lambda t: 0.01**t,
}


@dataclass(frozen=True)
class Optimizer:
    """SGD's learning rate and its schedule."""

    learning_rate: float
    schedule: str


def all_optimizers(rates: Sequence[float]) -> list[Optimizer]:
    """The settings to select from."""
    return [Optimizer(rate, schedule) for schedule in SCHEDULES for rate in rates]


@dataclass(frozen=True)
class Trained:
    """A network of each run, trained with the selected setting."""

    errors: list[float]  # of the S runs, on the test samples
    chosen: Optimizer
    parameters: list[dict[str, torch.Tensor]]  # of the S runs, by name
    tried: list[dict[str, Any]]  # a row per setting and selecting run, NaN where it diverged


class ReluProduct(torch.autograd.Function):
    """relu(scale * x + shift) V^T, one setting at a time: its activations fit the cache.

    Maps x (S, B, c), scales and shifts (S, Q, c) and V (S, d, c) to (S, Q, B, d). Only scales and
    shifts have gradients, for which activations are recomputed rather than stored.
    """

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> torch.Tensor:
        """The products."""
        ctx.save_for_backward(*tensors)
        x, scales, shifts, weights = tensors
        outputs = x.new_empty(*scales.shape[:2], weights.shape[1], x.shape[1])
        for run, setting in np.ndindex(*scales.shape[:2]):
            hidden = torch.addcmul(shifts[run, setting], x[run], scales[run, setting]).relu_()
            torch.mm(weights[run], hidden.T, out=outputs[run, setting])
        return outputs.mT

    @staticmethod
    def backward(ctx: Any, gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Sum x * g and g over the samples, with g = [hidden > 0] * (gradient V)."""
        x, scales, shifts, weights = ctx.saved_tensors
        of_scales, of_shifts = torch.empty_like(scales), torch.empty_like(shifts)
        for run, setting in np.ndindex(*scales.shape[:2]):
            hidden = torch.addcmul(shifts[run, setting], x[run], scales[run, setting]).relu_()
            inner = gradients[run, setting] @ weights[run]
            inner = torch.ops.aten.threshold_backward(inner, hidden, 0)
            torch.sum(inner, 0, out=of_shifts[run, setting])
            torch.sum(inner.mul_(x[run]), 0, out=of_scales[run, setting])
        return None, of_scales, of_shifts, None


class SourceNetworks(nn.Module):
    """f(x) = sum relu(norm(V relu(norm(W x)))); only scales and shifts are trained.

    Args:
        first: W (S, c, d), frozen.
        second: V (S, d, c), frozen.
        settings: Q.
        normalization: ``batch`` or ``layer``.
        opening: the inner ReLUs' initial shifts; at 0, each is closed for half of the samples.
        scales: the initial inner scales (S, c); 1 by default.
    """

    def __init__(
        self,
        first: torch.Tensor,
        second: torch.Tensor,
        settings: int,
        normalization: str = "batch",
        opening: float = 0.0,
        scales: torch.Tensor | None = None,
    ):
        super().__init__()
        runs, width, side = first.shape
        self.normalization = normalization
        self.first, self.second = first.float(), second.float()
        shapes = [(runs, settings, 1, size) for size in (width, side)]
        self.scales = nn.ParameterList(map(torch.ones, shapes))
        if scales is not None:
            self.scales[0].data *= scales[:, None, None]
        self.shifts = nn.ParameterList(map(torch.full, shapes, (opening, 0.0)))
        # All settings of a run share the first normalization's inputs.
        self.means = [torch.zeros(runs, 1, 1, width), torch.zeros(runs, settings, 1, side)]
        self.variances = [torch.ones(runs, 1, 1, width), torch.ones(runs, settings, 1, side)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(S, B, d) -> (S, Q, B)."""
        hidden = self._normalized(0, (x @ self.first.mT)[:, None])
        inner = [parameters[0][:, :, 0] for parameters in (self.scales, self.shifts)]
        hidden = self._normalized(1, ReluProduct.apply(hidden[:, 0], *inner, self.second))
        return torch.relu(torch.addcmul(self.shifts[1], hidden, self.scales[1])).sum(-1)

    def _normalized(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        """Normalize to mean 0 and variance 1 over samples (``batch``) or units (``layer``)."""
        if self.normalization == "batch" and not self.training:
            return (x - self.means[layer]) * (self.variances[layer] + EPS).rsqrt()
        dim = -1 if self.normalization == "layer" else -2
        mean = x.mean(dim, keepdim=True)
        centred = x - mean  # several times as fast as torch.var_mean
        variance = centred.square().mean(dim, keepdim=True)
        if self.normalization == "batch":
            unbiased = variance.detach() * (x.shape[-2] / (x.shape[-2] - 1))
            self.means[layer].lerp_(mean.detach(), STATISTICS_MOMENTUM)
            self.variances[layer].lerp_(unbiased, STATISTICS_MOMENTUM)
        return centred * (variance + EPS).rsqrt()


def draw_start(runs: Sequence[int], side: int) -> torch.Tensor:
    """Draw the dense students' initial weights (S, d, d), normal with variance 1/d."""
    generators = (torch.Generator().manual_seed(31_337 + run) for run in runs)
    drawn = [torch.randn(side, side, generator=generator) for generator in generators]
    return torch.stack(drawn) / side**0.5


class DenseNetworks(nn.Module):
    """Students of the teacher's form, f(x) = sum_i relu(w_i . x), with trained weights."""

    def __init__(self, runs: Sequence[int], side: int, settings: int):
        super().__init__()
        weight = draw_start(runs, side)[:, None]
        self.weight = nn.Parameter(weight.repeat(1, settings, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(S, B, d) -> (S, Q, B)."""
        return torch.relu(x[:, None] @ self.weight.mT).sum(-1)


def train(
    networks: nn.Module,
    optimizers: Sequence[Optimizer],
    samples: Samples,
    epochs: int,
    seed: int = 0,
) -> None:
    """Train all networks by SGD with momentum on the mean squared error, in place.

    The networks map (S, B, d) to (S, Q, B), for samples of S runs and Q settings of the optimizer.
    ``seed`` sets the samples' order, the same for all settings, in batches of 256.
    """
    x, y = samples.x["train"], samples.y["train"].float()
    count = x.shape[1]
    batch = min(BATCH, count)
    total = epochs * (count // batch)
    generator = torch.Generator().manual_seed(seed)
    parameters = list(networks.parameters())
    velocities = [torch.zeros_like(parameter) for parameter in parameters]
    networks.train()
    step = 0
    for _ in range(epochs):
        order = torch.randperm(count, generator=generator)
        for start in range(0, count - batch + 1, batch):
            chosen = order[start : start + batch]
            loss = (networks(x[:, chosen]) - y[:, None, chosen]).square().mean(-1).sum()
            gradients = torch.autograd.grad(loss, parameters)
            factors = {name: schedule(step / total) for name, schedule in SCHEDULES.items()}
            rates = torch.tensor([one.learning_rate * factors[one.schedule] for one in optimizers])
            rates = rates[None, :, None, None]
            moved = zip(parameters, velocities, gradients, strict=True)
            with torch.no_grad():
                for parameter, velocity, gradient in moved:
                    velocity.mul_(MOMENTUM).add_(gradient)
                    parameter.sub_(rates * velocity)
            step += 1
    networks.eval()


def evaluate(networks: nn.Module, samples: Samples, part: str) -> torch.Tensor:
    """Mean squared errors (S, Q) on a part of the samples; infinite where training diverged."""
    chunks = zip(samples.x[part].split(4096, 1), samples.y[part].split(4096, 1), strict=True)
    with torch.inference_mode():
        sums = [mean_squared_error(networks(x), y[:, None]) * y.shape[1] for x, y in chunks]
    error = torch.stack(sums).sum(0) / samples.y[part].shape[1]
    return error.nan_to_num(nan=math.inf, posinf=math.inf)


def train_sources(
    first: torch.Tensor,
    second: torch.Tensor,
    samples: Samples,
    sizes: Sizes,
    normalization: str = "batch",
    opening: float = 0.0,
    scales: torch.Tensor | None = None,
    name: str = "sources",
) -> Trained:
    """Train sources with the optimizer that ``_select_and_train`` selects.

    In a task, each run is a ``piece`` whose name begins with ``name``.
    """

    def build(run: int, settings: int) -> SourceNetworks:
        w, v = first[run : run + 1], second[run : run + 1]
        start = None if scales is None else scales[run : run + 1]
        if normalization == "batch" and start is None:
            # A unit without outgoing weights is unused. One without incoming weights is constant,
            # and the second BatchNorm removes it. At 5% density and d = 25 these are half.
            used = (w[0] != 0).any(1) & (v[0] != 0).any(0)
            w, v = w[:, used], v[..., used]
        return SourceNetworks(w, v, settings, normalization, opening, start)

    return _select_and_train(name, build, samples, sizes)


def train_students(
    side: int, runs: list[int], samples: Samples, sizes: Sizes
) -> tuple[Trained, torch.Tensor]:
    """Train dense students likewise; also return their weights (S, d, d)."""

    def build(run: int, settings: int) -> DenseNetworks:
        return DenseNetworks([runs[run]], side, settings)

    trained = _select_and_train("students", build, samples, sizes)
    return trained, torch.stack([parameters["weight"] for parameters in trained.parameters])


def _select_and_train(
    name: str, build: Callable[[int, int], nn.Module], samples: Samples, sizes: Sizes
) -> Trained:
    """Select the optimizer by the selecting runs' mean error on their validation samples.

    ``build`` takes a run's index and the number of settings. The other runs are then trained with
    the selected setting.
    """
    candidates = all_optimizers(sizes.rates)

    def train_run(run: int, settings: list[Optimizer]) -> Mapping[str, torch.Tensor]:
        def trained() -> dict[str, torch.Tensor]:
            networks, ours = build(run, len(settings)), samples.of_run(run)
            train(networks, settings, ours, sizes.epochs)
            errors = [evaluate(networks, ours, part)[0] for part in ("test", "validation")]
            parameters = {key: tensor.detach()[0] for key, tensor in networks.named_parameters()}
            return parameters | {ERRORS: torch.stack(errors, 1)}

        about = {"sizes": asdict(sizes), "settings": [asdict(setting) for setting in settings]}
        return piece(f"{name}-{run}", about, trained)

    trials = [train_run(run, candidates) for run in range(sizes.selecting)]
    errors = torch.stack([trial[ERRORS] for trial in trials])
    best = int(errors[..., 1].mean(0).argmin())
    pairs = errors.nan_to_num(posinf=math.nan).tolist()
    tried = [
        {"run": run, "mse": mse, "validation": selecting} | asdict(setting)
        for run, by_setting in enumerate(pairs)
        for (mse, selecting), setting in zip(by_setting, candidates, strict=True)
    ]
    chosen = [{key: of_all[best] for key, of_all in trial.items()} for trial in trials]
    for run in range(sizes.selecting, len(samples.teachers)):
        alone = train_run(run, [candidates[best]])
        chosen.append({key: of_one[0] for key, of_one in alone.items()})
    tested = [float(trained[ERRORS][0]) for trained in chosen]
    return Trained(tested, candidates[best], chosen, tried)
