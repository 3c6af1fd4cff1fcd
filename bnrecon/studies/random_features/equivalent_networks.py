"""Networks that compute the same function: by weights, by ID cond scales, in another order."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.features.shapes import LayerShape
from bnrecon.targets.collapsed_pair import CollapsedPair

__all__ = [
    "CONTROLS",
    "PAIRS",
    "Reordered",
    "controls",
    "gradient_difference",
    "perturb",
    "reorder",
    "reparameterize",
]

# A pair is computed as the two convolutions that it is, or collapsed to one.
PAIRS = {
    "two_convolutions": "ID cond, two convolutions",
    "one_convolution": "ID cond, collapsed to one convolution",
}
# The weights themselves: each convolution's sum over its input channels in a random order, or
# each weight changed by at most one in its last digit at the start.
CONTROLS = {
    "weights, sums in another order": tuple(f"reordered_{seed}" for seed in range(3)),
    "weights, started one rounding apart": tuple(f"rounded_{seed}" for seed in range(8)),
}


def reparameterize(network: nn.Module, collapsed: bool) -> nn.Module:
    """Copy a network with its convolutions as id_cond pairs whose scales are the weights.

    Feature (i, p, j) reads input j and writes output i at tap p, so that γ holds the weight in
    the order (outputs, taps, inputs). The inner layers have scales alone.

    Args:
        network: any network with ``nn.Conv2d`` layers.
        collapsed: compute each pair as one convolution, else as two.

    Returns:
        A network that computes the same function, up to rounding.
    """
    network = copy.deepcopy(network)
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, nn.Conv2d):
                outputs, inputs, *kernel = module.weight.shape
                shape = LayerShape(outputs, inputs, (kernel[0], kernel[1]))
                pair = CollapsedPair(
                    shape, shape.equations, "id_cond", "scale", 0, 0, collapsed
                ).to(module.weight)
                setattr(parent, name, pair.start_from(module.weight))
    return network


class Reordered(nn.Module):
    """A convolution whose sum over input channels is taken in another order.

    In exact arithmetic it is the given convolution: only rounding differs.

    >>> convolution = nn.Conv2d(3, 2, 3, bias=False)
    >>> x = torch.randn(1, 3, 4, 4)
    >>> other = Reordered(convolution, torch.tensor([2, 0, 1]))
    >>> torch.allclose(other(x), convolution(x), atol=1e-6)
    True
    """

    order: torch.Tensor

    def __init__(self, convolution: nn.Conv2d, order: torch.Tensor):
        super().__init__()
        self.convolution = convolution
        self.register_buffer("order", order)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The convolution of the reordered channels with the reordered weight."""
        weight = self.convolution.weight[:, self.order]
        padding = self.convolution.padding
        return F.conv2d(x[:, self.order], weight, self.convolution.bias, padding=padding)


def reorder(network: nn.Module, seed: int) -> nn.Module:
    """Copy a network, the input channels of each convolution in a random order."""
    network = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(seed)
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, nn.Conv2d):
                order = torch.randperm(module.in_channels, generator=generator)
                setattr(parent, name, Reordered(module, order))
    return network


def perturb(network: nn.Module, seed: int) -> nn.Module:
    """Copy a network, each convolution's weights times 1 + r ε, r of -1, 0 and 1 at random."""
    network = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.detach()
            steps = torch.randint(-1, 2, weight.shape, generator=generator).to(weight)
            module.weight.data = weight * (1 + torch.finfo(weight.dtype).eps * steps)
    return network


def controls(network: nn.Module) -> dict[str, nn.Module]:
    """The networks of ``CONTROLS``, by name."""
    makers = zip(CONTROLS.values(), (reorder, perturb), strict=True)
    return {name: make(network, seed) for names, make in makers for seed, name in enumerate(names)}


def gradient_difference(weights: nn.Module, others: nn.Module) -> float:
    """Largest ‖∂L/∂γ - ∂L/∂vec(W)‖ / ‖∂L/∂vec(W)‖ over the layers."""
    differences = [
        float((wanted - found).norm() / wanted.norm())
        for wanted, found in zip(_gradients(weights), _gradients(others), strict=True)
    ]
    return max(differences)


def _gradients(network: nn.Module) -> list[torch.Tensor]:
    """The gradient of each convolution or pair, in the order (outputs, taps, inputs)."""
    found = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            found.append(_gradient(module.weight).permute(0, 2, 3, 1).flatten())
        elif isinstance(module, CollapsedPair):
            found.append(_gradient(module.gamma))
    return found


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
