"""Set BatchNorm statistics from data, layer by layer; random networks with such statistics."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import nn

from bnrecon.runtime.errors import UserError
from bnrecon.runtime.torch_modes import callers_default_device, outside_torch_modes

Measure = Callable[[nn.Module, torch.Tensor], torch.Tensor]
Update = Callable[[nn.Module, torch.Tensor, torch.Tensor], None]


def set_statistics(network: nn.Module, inputs: torch.Tensor | Iterable[torch.Tensor]) -> nn.Module:
    """Set every BatchNorm's running statistics to the mean and variance over a data set, in place.

    "Batch Normalization Explained", Eq. 3 with the whole set as the batch: the variance is the
    population's. Layers are set in the order in which they run, so that each sees inputs from
    earlier layers that are already set. In a float32 network the statistics are rounded: the zero
    sets of a linear layer then miss the data's mean by about 1e-7, and contain it in float64; those
    of a convolution contain the mean patch.

    Args:
        network: with BatchNorm layers that keep running statistics.
        inputs: a tensor (n, *input shape), which runs through the network once, or batches, which
            run once for every BatchNorm.

    Returns:
        The network.

    Raises:
        UserError: a BatchNorm keeps no statistics, or as for ``adapt_layers``.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    >>> inputs = torch.randn(50, 2)
    >>> outputs = set_statistics(network, inputs).eval()(inputs)
    >>> bool(outputs.mean(0).abs().max() < 1e-5)
    True
    """
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    norms = [module for module in network.modules() if isinstance(module, kinds)]
    if any(norm.running_mean is None for norm in norms):
        raise UserError("a BatchNorm has track_running_stats=False: it has no statistics to set")

    def update(norm: nn.Module, mean: torch.Tensor, variance: torch.Tensor) -> None:
        norm.running_mean.copy_(mean)  # type: ignore[operator]  # checked above
        norm.running_var.copy_(variance)  # type: ignore[operator]  # checked above

    adapt_layers(network, norms, inputs, lambda _norm, x: x, update)
    return network


@outside_torch_modes
def random_network(width: int, depth: int, *, batch_norm: bool = True, seed: int = 0) -> nn.Module:
    """A leaky-ReLU network of two inputs and one output with random weights, in eval mode.

    With BatchNorm, statistics are set from 50 Gaussian points; without, biases are PyTorch's random
    ones.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        modules: list[nn.Module] = []
        for layer in range(depth):
            inputs = width if layer else 2
            modules.append(nn.Linear(inputs, width, not batch_norm, dtype=torch.float32))
            if batch_norm:
                modules.append(nn.BatchNorm1d(width))
            modules.append(nn.LeakyReLU(0.1))
        modules.append(nn.Linear(width, 1, dtype=torch.float32))
        network = nn.Sequential(*modules).double().eval()
        return set_statistics(network, torch.randn(50, 2, dtype=torch.float64))


def adapt_layers(
    network: nn.Module,
    layers: Sequence[nn.Module],
    inputs: torch.Tensor | Iterable[torch.Tensor],
    measure: Measure,
    update: Update,
) -> None:
    """Update layers from the moments of a data set, in the order in which they run, in place.

    Args:
        network: runs in eval mode; its modules' modes are restored.
        layers: of the network. Those that never run are not changed.
        inputs: a tensor (n, *input shape), or batches, which run once for every layer; an object
            that can be iterated again is not held in memory.
        measure: of a layer and its input: the values (n, channels, ...) whose moments are taken.
        update: of a layer, and the mean and population variance (channels,) of its values over the
            data and all positions. It changes the layer before the layer runs.

    Raises:
        UserError: a layer runs twice in one pass, so that its moments would depend on itself, its
            values are not finite, or the inputs are not tensors.
    """
    batches = [inputs] if isinstance(inputs, torch.Tensor) else inputs
    if isinstance(batches, Iterator):  # can be iterated only once
        batches = list(batches)
    first = _first_batch(batches)
    order: list[nn.Module] = []
    names = {module: name for name, module in network.named_modules()}

    def note(layer: nn.Module, _inputs: tuple) -> None:
        if layer in order:
            raise UserError(f"{names[layer]}: runs twice in one pass; use a module for each use")
        order.append(layer)

    def finish(layer: nn.Module, moments: _Moments) -> None:
        moments.require_finite(names[layer])
        update(layer, moments.mean, moments.variance)

    def adapt(layer: nn.Module, inputs: tuple) -> None:
        moments = _Moments(measure)
        moments.add(layer, inputs)
        finish(layer, moments)

    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            _run(network, layers, note, first[:1])
            if isinstance(inputs, torch.Tensor):
                _run(network, order, adapt, inputs)
                return
            for layer in order:
                moments = _Moments(measure)
                for batch in batches:
                    with contextlib.suppress(_ReachedError):
                        _run(network, [layer], moments.add_and_stop, batch)
                finish(layer, moments)
    finally:
        for module, mode in modes.items():
            module.training = mode


def _first_batch(batches: Iterable[torch.Tensor]) -> torch.Tensor:
    first = next(iter(batches), None)
    if first is None or not len(first):
        raise UserError("inputs: empty; give at least one")
    if not isinstance(first, torch.Tensor):
        raise UserError(f"inputs: a batch is {type(first).__name__}; give tensors without labels")
    return first


def _run(
    network: nn.Module, layers: Sequence[nn.Module], hook: Callable, inputs: torch.Tensor
) -> None:
    """Run a network with a hook before each of these layers."""
    with contextlib.ExitStack() as hooks:
        for layer in layers:
            hooks.enter_context(layer.register_forward_pre_hook(hook))
        hooks.enter_context(callers_default_device())
        network(inputs)


class _ReachedError(Exception):
    """Ends a run after the measured layer."""


class _Moments:
    """The mean and population variance over batches, in float64, merged as in Chan et al."""

    def __init__(self, measure: Measure) -> None:
        self.measure, self.count = measure, 0
        # Added to numbers on any device
        self.mean = self.squares = torch.zeros((), dtype=torch.float64, device="cpu")

    def add(self, layer: nn.Module, inputs: tuple) -> None:
        values = self.measure(layer, inputs[0])
        flat = values.detach().transpose(0, 1).flatten(1).double()
        count, mean = flat.shape[1], flat.mean(1)
        total = self.count + count
        delta = mean - self.mean  # as in Chan et al.
        within = ((flat - mean[:, None]) ** 2).sum(1)
        self.squares = self.squares + within + delta**2 * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.count = total

    def add_and_stop(self, layer: nn.Module, inputs: tuple) -> None:
        self.add(layer, inputs)
        raise _ReachedError

    def require_finite(self, name: str) -> None:
        if not bool(self.squares.isfinite().all()):
            raise UserError(f"{name}: its values over the inputs are not all finite")

    @property
    def variance(self) -> torch.Tensor:
        return self.squares / self.count
