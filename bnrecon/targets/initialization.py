"""Smart initialization: normalize a network's pre-activations by a data set before training."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from bnrecon.features.portable_random import Stream
from bnrecon.partition import adapt_layers, set_statistics
from bnrecon.runtime.errors import UserError, require_choice
from bnrecon.runtime.module_code import added_code
from bnrecon.runtime.options import checked
from bnrecon.runtime.torch_modes import callers_default_device, outside_torch_modes
from bnrecon.targets.module_tree import change_class, replace_modules

METHODS = ("freeze", "fold")
WEIGHTED = (nn.Linear, nn.Conv2d)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class _Frozen(nn.modules.batchnorm._BatchNorm):
    """A BatchNorm that also uses its running statistics in training, and never changes them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        if self.running_mean is None:
            raise UserError("track_running_stats=False: there are no statistics to freeze")
        self.train(False)

    def train(self, mode: bool = True) -> Any:
        """Stay in eval mode; modules inside, such as a dropout, change theirs."""
        super().train(mode)
        self.training = False
        return self

    def reset_running_stats(self) -> None:
        """Keep them; ``torch.optim.swa_utils.update_bn`` would reset them for good."""


class FrozenBatchNorm1d(_Frozen, nn.BatchNorm1d):
    """BatchNorm1d with frozen statistics; scale and shift are learned if it is affine."""


class FrozenBatchNorm2d(_Frozen, nn.BatchNorm2d):
    """BatchNorm2d with frozen statistics; scale and shift are learned if it is affine.

    >>> layer = FrozenBatchNorm2d(1)
    >>> _ = layer.train()(torch.ones(2, 1, 4, 4))
    >>> layer.training, layer.running_mean
    (False, tensor([0.]))
    """


@outside_torch_modes
def initialize_from_data(
    network: nn.Module,
    inputs: torch.Tensor | Iterable[torch.Tensor],
    *,
    method: str = "freeze",
    eps: float = 1e-5,
) -> nn.Module:
    """The smart initialization of "Batch Normalization Explained", Section 4, on a copy.

    Layer by layer, in running order, every channel's pre-activation h is replaced by
    (h - μ) / sqrt(σ² + eps), with the mean and variance over a data set (Eq. 3) and, in a
    convolution, over all positions. The zero set of a linear layer's unit then passes through the
    data, with points on both sides. In a convolution this holds for each channel over all positions
    (its hyperplane passes through the mean patch), not at every single position. Training does not
    change μ and σ.

    - A network with BatchNorm: its running statistics are set and frozen; γ and β are kept and
      learned.
    - A network without, ``freeze``: a frozen normalization without γ and β follows every Linear
      and Conv2d except the last to run. The layer becomes ``Sequential(layer, normalization)``.
    - A network without, ``fold``: the same function without a new module. Each such layer's weight
      is divided by sqrt(σ² + eps), and its bias, added if there is none, becomes
      (bias - μ) / sqrt(σ² + eps).

    Both methods start from the same function but train differently: a step of SGD moves the
    effective weight w / σ by 1 / σ² times as much with ``freeze`` as with ``fold``.

    Args:
        network: the network; it is not changed.
        inputs: a tensor (n, *input shape), which runs once, or batches, which run once per layer.
        method: ``freeze`` or ``fold``; a network with BatchNorm is always frozen.
        eps: added to the variances of a network without BatchNorm; above 0.

    Returns:
        The initialized copy, in the network's mode.

    Raises:
        UserError: ``eps``, the method, a layer or the inputs are not supported, a layer runs twice
            or on sequences, or its values are not finite.

    >>> network = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    >>> inputs = torch.randn(100, 2)
    >>> ready = initialize_from_data(network, inputs, method="fold")
    >>> bool(ready[0](inputs).mean(0).abs().max() < 1e-5)
    True
    """
    require_choice("method=", method, METHODS)
    eps = checked("eps", eps, float, above=0)
    ready = copy.deepcopy(getattr(network, "_orig_mod", network))  # not torch.compile's wrapper
    with callers_default_device():  # a loader may draw from a generator there
        batches = inputs if isinstance(inputs, torch.Tensor) else list(inputs)
    if not len(batches):
        raise UserError("inputs: there are none; statistics need some")
    if isinstance(batches, torch.Tensor) and batches.ndim == 2 and len(batches) == 1:
        raise UserError("inputs: one point has no variance; give two or more")
    _require(ready, nn.modules.batchnorm._BatchNorm, NORMS)
    if any(isinstance(module, NORMS) for module in ready.modules()):
        if method == "fold":
            raise UserError("method=fold: the network has BatchNorm; give method=freeze")
        set_statistics(ready, batches)
        for module in ready.modules():
            if isinstance(module, NORMS):
                freeze(module)
        return ready
    _require(ready, nn.modules.conv._ConvNd, WEIGHTED)
    layers = _hidden_layers(ready, batches if isinstance(batches, torch.Tensor) else batches[0])
    if method == "fold":
        _require_foldable(ready, layers)
        # Call forward, not the layer: its hooks must not run twice.
        update = functools.partial(fold_statistics, eps=eps)
        adapt_layers(ready, layers, batches, lambda layer, x: layer.forward(x), update)
        return ready
    normalized = functools.partial(_normalized, eps=eps)
    return set_statistics(replace_modules(ready, set(layers).__contains__, normalized), batches)


def initialize_biases(network: nn.Module, kind: str, seed: int = 0) -> nn.Module:
    """Set the biases of all Linear and Conv2d layers, in place: the paper's two comparisons.

    Missing biases are added. They are ``zero``, or ``random``: uniform within 1 / sqrt(fan-in), as
    by default in PyTorch, and independent of torch's draws from this seed. Returns the network.

    >>> initialize_biases(nn.Linear(4, 2, bias=False), "zero").bias.tolist()
    [0.0, 0.0]
    """
    require_choice("kind=", kind, ("zero", "random"))
    layers = [layer for layer in network.modules() if isinstance(layer, WEIGHTED)]
    for number, layer in enumerate(layers):
        bias = torch.zeros(len(layer.weight))
        if kind == "random":
            reach = layer.weight[0].numel() ** -0.5
            bias = Stream(seed, number).uniform((len(layer.weight),), "bias", reach)
        layer.bias = nn.Parameter(bias.to(layer.weight))
    return network


def _require_foldable(network: nn.Module, layers: Sequence[nn.Module]) -> None:
    """Raise ``UserError`` for a layer with code or a weight that folding would change."""
    for layer in layers:
        kind = nn.Linear if isinstance(layer, nn.Linear) else nn.Conv2d
        if code := added_code(layer, kind):
            raise UserError(f"method=fold: {type(layer).__name__} has {code}; give method=freeze")
    weights = [layer.weight for layer in network.modules() if isinstance(layer, WEIGHTED)]
    if len(set(weights)) < len(weights):
        raise UserError("method=fold: two layers share a weight; give method=freeze")


def _require(network: nn.Module, kind: type[nn.Module], supported: tuple[type, ...]) -> None:
    """Raise ``UserError`` for a layer of a class that is not supported."""
    for module in network.modules():
        if isinstance(module, kind) and not isinstance(module, supported):
            raise UserError(
                f"{type(module).__name__}: only Linear, Conv2d, BatchNorm1d and BatchNorm2d can be "
                "initialized from data"
            )


def _hidden_layers(network: nn.Module, inputs: torch.Tensor) -> list[nn.Module]:
    """All Linear and Conv2d layers except the last to run, which gives the network's output."""
    order: list[nn.Module] = []
    layers = [module for module in network.modules() if isinstance(module, WEIGHTED)]

    def note(layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if isinstance(layer, nn.Linear) and x.ndim > 2:
            raise UserError(
                f"a linear layer runs on inputs of shape {tuple(x.shape[1:])}: statistics are "
                "those of outputs (n, channels); give a network without sequences"
            )
        order.append(layer)
        return x

    adapt_layers(network, layers, inputs[:1], note, lambda *_moments: None)
    return order[:-1]


@torch.no_grad()
def fold_statistics(
    layer: nn.Module, mean: torch.Tensor, variance: torch.Tensor, eps: float
) -> None:
    """Normalize a layer's outputs h to (h - mean) / sqrt(variance + eps), in place.

    For each output channel of a Linear or Conv2d; a missing bias is added.

    Raises:
        UserError: the weight is computed from other parameters.

    >>> layer = nn.Linear(2, 1)
    >>> outputs = layer(torch.ones(1, 2))
    >>> fold_statistics(layer, torch.ones(1), 4 * torch.ones(1), eps=0)
    >>> torch.allclose(layer(torch.ones(1, 2)), (outputs - 1) / 2)
    True
    """
    if hasattr(layer, "parametrizations"):
        raise UserError("method=fold: a layer's weight is parametrized; give method=freeze")
    weight: Any = layer.weight
    bias: Any = layer.bias
    scale = (variance.double() + eps).rsqrt()
    before = torch.zeros_like(scale) if bias is None else bias.double()
    shift = ((before - mean.double()) * scale).to(weight)
    weight.mul_(scale.to(weight).reshape(-1, *[1] * (weight.ndim - 1)))
    if bias is None:
        layer.bias = nn.Parameter(shift)
    else:
        bias.copy_(shift)


def freeze(norm: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
    """Freeze a BatchNorm's statistics, in place; it keeps its parameters, hooks and subclass.

    >>> layer = nn.BatchNorm2d(1)
    >>> freeze(layer)
    >>> isinstance(layer, FrozenBatchNorm2d), layer.train().training
    (True, False)
    """
    is_flat = isinstance(norm, nn.BatchNorm1d)
    change_class(norm, FrozenBatchNorm1d if is_flat else FrozenBatchNorm2d)
    norm.training = False


def _normalized(layer: nn.Module, eps: float) -> nn.Module:
    kind = FrozenBatchNorm1d if isinstance(layer, nn.Linear) else FrozenBatchNorm2d
    weight: Any = layer.weight
    norm = kind(len(weight), eps=eps, affine=False).to(weight.device, weight.dtype)
    return nn.Sequential(layer, norm).train(layer.training)
