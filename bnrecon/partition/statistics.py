"""BatchNorm statistics set from data, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import nn

from bnrecon.runtime.errors import UserError

Update = Callable[[nn.Module, torch.Tensor, torch.Tensor], None]


def set_statistics(network: nn.Module, inputs: torch.Tensor | Iterable[torch.Tensor]) -> nn.Module:
    """Set every BatchNorm's running statistics to the mean and variance over a data set, in place.

    "Batch Normalization Explained", Eq. 3 with the whole set as the batch: the variance is the
    population's. The layers are set in the order in which they run, so that each sees its input as
    the layers before it, already set, produce it. In a float32 network the statistics are rounded:
    the zero sets of a linear layer then pass by the data's mean at about 1e-7, and through it in
    float64; those of a convolution by the mean patch.

    Args:
        network: with BatchNorm layers that keep running statistics.
        inputs: a tensor (n, *input shape), which runs through the network once, or batches, which
            run once for every BatchNorm.

    Returns:
        The network.

    >>> network = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    >>> inputs = torch.randn(50, 2)
    >>> outputs = set_statistics(network, inputs).eval()(inputs)
    >>> bool(outputs.mean(0).abs().max() < 1e-5)
    True
    """
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    if any(norm.running_mean is None for norm in norms):
        raise UserError("a BatchNorm has track_running_stats=False: it has no statistics to set")

    def update(norm: nn.Module, mean: torch.Tensor, variance: torch.Tensor) -> None:
        norm.running_mean.copy_(mean)  # type: ignore[operator]  # checked above
        norm.running_var.copy_(variance)  # type: ignore[operator]  # checked above

    adapt_layers(network, norms, inputs, lambda _norm, given: given, update)
    return network


_BatchNorm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def adapt_layers(
    network: nn.Module,
    layers: Sequence[nn.Module],
    inputs: torch.Tensor | Iterable[torch.Tensor],
    measure: Callable[[nn.Module, torch.Tensor], torch.Tensor],
    update: Update,
) -> None:
    """Update layers from the moments of a data set, in the order in which they run, in place.

    Args:
        network: run in eval mode; afterwards its modules' modes are as before.
        layers: of the network. Those that never run are left as they are.
        inputs: a tensor (n, *input shape), or batches, which run once for every layer; an object
            that iterates anew each time is not held in memory.
        measure: of a layer and its input: the values (n, channels, ...) whose moments are taken.
        update: of a layer, and the mean and population variance (channels,) of its values over the
            data and all places. It changes the layer before the layer runs.

    Raises:
        UserError: where a layer runs twice in one pass, so that its moments would depend on itself.
    """
    one = isinstance(inputs, torch.Tensor)
    batches = [inputs] if isinstance(inputs, torch.Tensor) else _repeatable(inputs)
    first = next(iter(batches), None)
    if first is None or not len(first):
        raise UserError("inputs: empty; give at least one")
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            order = _execution_order(network, layers, first[:1])
            if one:
                _adapt_in_one_pass(network, order, first, measure, update)
                return
            for layer in order:
                moments = _Moments()
                for batch in batches:
                    _run_up_to(network, layer, batch, measure, moments)
                update(layer, moments.mean, moments.variance)
    finally:
        for module, mode in modes.items():
            module.training = mode


def _repeatable(inputs: Iterable[torch.Tensor]) -> Iterable[torch.Tensor]:
    """The batches, held where they come but once; a collection that begins anew is not held."""
    return list(inputs) if isinstance(inputs, Iterator) else inputs


class _Moments:
    """The mean and population variance over batches, in float64, merged as Chan et al. do."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.squares = torch.zeros((), dtype=torch.float64)

    def add(self, values: torch.Tensor) -> None:
        flat = values.detach().transpose(0, 1).flatten(1).double()
        count, mean = flat.shape[1], flat.mean(1)
        total = self.count + count
        beside = mean - self.mean
        within = ((flat - mean[:, None]) ** 2).sum(1)
        self.squares = self.squares + within + beside**2 * (self.count * count / total)
        self.mean = self.mean + beside * (count / total)
        self.count = total

    @property
    def variance(self) -> torch.Tensor:
        return self.squares / self.count


class _ReachedError(Exception):
    """Ends a run behind the layer that was to be measured."""


def _execution_order(
    network: nn.Module, layers: Sequence[nn.Module], inputs: torch.Tensor
) -> list[nn.Module]:
    order: list[nn.Module] = []

    def note(layer: nn.Module, _inputs: tuple) -> None:
        if layer in order:
            names = {module: name for name, module in network.named_modules()}
            raise UserError(f"{names[layer]}: runs twice in one pass; use a module for each use")
        order.append(layer)

    _with_hooks(network, {layer: note for layer in layers}, inputs)
    return order


def _adapt_in_one_pass(
    network: nn.Module,
    order: Sequence[nn.Module],
    inputs: torch.Tensor,
    measure: Callable[[nn.Module, torch.Tensor], torch.Tensor],
    update: Update,
) -> None:
    def adapt(layer: nn.Module, given: tuple) -> None:
        moments = _Moments()
        moments.add(measure(layer, given[0]))
        update(layer, moments.mean, moments.variance)

    _with_hooks(network, {layer: adapt for layer in order}, inputs)


def _run_up_to(
    network: nn.Module,
    layer: nn.Module,
    inputs: torch.Tensor,
    measure: Callable[[nn.Module, torch.Tensor], torch.Tensor],
    moments: _Moments,
) -> None:
    def add(layer: nn.Module, given: tuple) -> None:
        moments.add(measure(layer, given[0]))
        raise _ReachedError

    try:
        _with_hooks(network, {layer: add}, inputs)
    except _ReachedError:
        return


def _with_hooks(network: nn.Module, hooks: dict[nn.Module, Callable], inputs: torch.Tensor) -> None:
    handles = [layer.register_forward_pre_hook(hook) for layer, hook in hooks.items()]
    try:
        network(inputs)
    finally:
        for handle in handles:
            handle.remove()
