"""A VGG of frozen random convolutions, whose normalizations alone are trained from scratch.

Burkholz 2024, Sect. 3.2.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from bnrecon.features.register import DISTRIBUTIONS, choose_width, distribution
from bnrecon.features.shapes import LayerShape
from bnrecon.runtime.errors import UserError, require_choice
from bnrecon.targets.collapsed_pair import CollapsedPair
from bnrecon.targets.models import vgg
from bnrecon.targets.reparameterization import FixedFactors


def normalization_vgg(  # noqa: PLR0913  one parameter for each field of NormalizationVggTarget
    shape: tuple[int, int, int],
    classes: int,
    width: int,
    groups: list[int],
    activation: str,
    features: str,
    excess: int,
    inner: str,
    oversampling: float | None = None,
    start: str = "usual",
    step: float = 1.0,
    **layout: Any,
) -> nn.Module:
    """Build the source architecture of a VGG: two frozen random convolutions for every layer.

    Only normalizations are parameters. The features come from the generator of the initial weights,
    so that ``train.seed`` reproduces them. The linear layer is a pair too, before an average over
    the remaining pixels.

    All scales start at the same γ = g; with ``inner="scale"`` those of id_cond, sparse_id_cond and
    ortho_cond start from a VGG's initial weights instead (Random features, Theorem 3.1).
    ``relative_step.md`` in this folder derives why g = 1, both papers' implicit start, trains
    slowly, and what ``start="weights"`` does.

    For images of a shape (C, H, W); the options are those of ``NormalizationVggTarget``. With
    features ``none`` or inner ``mask`` one trained convolution replaces every pair.

    Raises:
        UserError: for an unknown name, or a width that the features do not allow.

    >>> network = normalization_vgg(
    ...     (3, 8, 8), 10, 4, [1, 1], "relu", "he_normal", 10, "batchnorm"
    ... )
    >>> network(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 10])
    """
    require_choice("features=", features, ["none", *DISTRIBUTIONS])
    if inner == "mask" and features != "sparse_id_cond":
        raise UserError(f"inner=mask, features={features}: needs features=sparse_id_cond")
    model = vgg(shape, classes, width, groups, activation, **layout)
    seed = int(torch.randint(2**31, ()))
    numbers = itertools.count()

    def replacement(layer: nn.Conv2d | nn.Linear) -> nn.Module:
        weight = layer.weight.detach()
        if weight.dim() == 2:
            weight = weight[:, :, None, None]
        number = next(numbers)
        outputs, inputs, rows, columns = weight.shape
        fan_in = inputs * rows * columns
        if features == "none":
            return _convolution(weight * start_factor(fan_in, True, start, step))
        shape = LayerShape(outputs, inputs, (rows, columns))
        kind = distribution(features)
        c1 = shape.equations + excess
        if oversampling is not None:
            c1 = choose_width(features, shape, oversampling)
        kind.check_width(shape, c1)
        between = "scale" if inner == "mask" else inner
        pair = CollapsedPair(shape, c1, features, between, seed, number)
        from_weight = between == "scale" and (kind.orthogonal or kind.at_most_n)
        if from_weight:
            pair.start_from(weight)
        with torch.no_grad():
            pair.gamma.mul_(start_factor(fan_in, from_weight, start, step))
        return _masked(pair) if inner == "mask" else pair

    convolutions = model.get_submodule("features")
    for name, module in list(convolutions.named_children()):
        if isinstance(module, nn.Conv2d):
            setattr(convolutions, name, replacement(module))
    linear = model.get_submodule("classifier")
    assert isinstance(linear, nn.Linear)
    layers = {"features": convolutions, "classifier": replacement(linear)}
    layers["classifier_norm"] = nn.BatchNorm2d(classes)
    layers |= {"average": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return nn.Sequential(OrderedDict(layers))


def _convolution(weight: torch.Tensor) -> nn.Conv2d:
    """A trained convolution, initialized with a weight (c2, c0, kh, kw)."""
    outputs, inputs, *kernel = weight.shape
    size = (kernel[0], kernel[1])
    convolution = nn.Conv2d(inputs, outputs, size, padding=kernel[0] // 2, bias=False)
    convolution.weight = nn.Parameter(weight)
    return convolution


def _masked(pair: CollapsedPair) -> nn.Conv2d:
    """The pair's weight as a trained one, with a mask of the entries that its features reach."""
    with torch.no_grad():
        convolution = _convolution(pair.weight())
        reached = (pair.weight(torch.ones_like(pair.gamma)) != 0).float()
    parametrize.register_parametrization(convolution, "weight", FixedFactors(reached))
    return convolution


def start_factor(fan_in: int, as_weights: bool, start: str, step: float) -> float:
    """The factor on the usual initial values of a layer's trained parameters.

    The SGD step of a layer before a normalization, relative to its weight, depends on it.

    Args:
        fan_in: f = c0 kh kw.
        as_weights: whether the usual values are PyTorch's weights, of root mean square
            1 / sqrt(3 f); they are 1 otherwise.
        start: the desired root mean square: ``usual``, ``ones`` (1) or ``weights``.
        step: divides the start by its square root; relative steps are ``step`` times as long.

    >>> round(start_factor(144, as_weights=False, start="weights", step=1) ** -2)
    432
    >>> start_factor(144, as_weights=True, start="weights", step=4)
    0.5
    """
    weights = (3 * fan_in) ** -0.5
    usual = weights if as_weights else 1.0
    return {"usual": usual, "ones": 1.0, "weights": weights}[start] / usual / step**0.5
