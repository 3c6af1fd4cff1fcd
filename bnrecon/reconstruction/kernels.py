"""The layer types that are rebuilt: their weights as convolution kernels, and these applied."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as torch_module

from bnrecon.features.shapes import LayerShape

Norm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
Convolution: TypeAlias = nn.Conv1d | nn.Conv2d | nn.Conv3d
Transposed: TypeAlias = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
Layer: TypeAlias = nn.Linear | Convolution | Transposed

# Indexed by the number of spatial dimensions: none for a linear layer.
PLAIN: tuple[type[Any], ...] = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
LAYERS: tuple[type[Any], ...] = (*PLAIN, *TRANSPOSED)
NORMS: list[type[Norm]] = [nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d]
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
BUILT_IN: tuple[type[Any], ...] = (*LAYERS, *NORMS[1:])
METHODS = ("forward", "_conv_forward")  # a convolution's forward calls the second
FILES = {sys.modules[kind.__module__].__file__ for kind in BUILT_IN}


class Unpacked(nn.Module):
    """An attention whose projections are modules that it calls; a trace does not look inside."""


def is_plain(module: nn.Module) -> bool:
    """Whether a module is a layer or batch normalization that computes exactly what PyTorch's does.

    A subclass qualifies if it overrides no computation.

    >>> is_plain(nn.Linear(2, 3)), is_plain(nn.ReLU())
    (True, False)
    """
    kind = type(module)
    return (
        isinstance(module, BUILT_IN)
        and all(_file_of(kind, name) in FILES | {None} for name in METHODS)
        and kind.__call__ is nn.Module.__call__
        and not any(name in vars(module) for name in METHODS)
    )


def _file_of(kind: type[Any], method: str) -> str | None:
    """Return the file of a method's code, or ``None``; a wrapper of that name has another file."""
    function = getattr(kind, method, None)
    return None if function is None else function.__code__.co_filename


def changes_to_torch() -> list[str]:
    """List changes to the methods of rebuilt classes, and hooks on every module's call.

    >>> changes_to_torch()
    []
    """
    methods = [(kind, name) for kind in BUILT_IN for name in METHODS]
    methods += [(nn.Module, "__call__"), (nn.Module, "_call_impl")]
    files = FILES | {torch_module.__file__, None}
    changed = [
        f"torch.nn.{kind.__name__}.{name} is replaced"
        for kind, name in methods
        if _file_of(kind, name) not in files
    ]
    hooks = (torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks)
    return changed + ["forward hooks are registered for all modules"] * any(hooks)


def norm_class(module: Layer) -> type[Norm]:
    """The batch normalization for a layer's output.

    >>> norm_class(nn.Conv3d(1, 2, 3)).__name__
    'BatchNorm3d'
    """
    return NORMS[module.weight.ndim - 2]


def kernel_of(module: Layer) -> torch.Tensor:
    """A layer's weight as the kernel (c2, c0 / groups, taps) of a convolution.

    A linear layer's kernel is 1x1. A transposed convolution is a convolution of its input, with
    zeros inserted, by the flipped kernel.

    >>> kernel_of(nn.Linear(3, 2)).shape, kernel_of(nn.ConvTranspose1d(4, 6, 5, groups=2)).shape
    (torch.Size([2, 3, 1, 1]), torch.Size([6, 2, 5]))
    """
    if isinstance(module, nn.Linear):
        return module.weight[:, :, None, None]
    if isinstance(module, TRANSPOSED):
        return _turned(module.weight, module.groups)
    return module.weight


def weight_of(kernel: torch.Tensor, kind: type[Any], groups: int) -> torch.Tensor:
    """The weight of a layer of this class for a kernel: the inverse of ``kernel_of``."""
    if kind is nn.Linear:
        return kernel[:, :, 0, 0]
    return _turned(kernel, groups) if kind in TRANSPOSED else kernel


def _turned(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """Exchange inputs and outputs of each group and reverse the taps; its own inverse."""
    exchanged = weight.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    return exchanged.flip(tuple(range(2, weight.ndim)))


def group_shape(module: Layer) -> LayerShape:
    """The shape of one group of a layer, or of the whole layer without groups."""
    kernel = kernel_of(module)
    outputs = len(kernel) // getattr(module, "groups", 1)
    return LayerShape(outputs, kernel.shape[1], tuple(kernel.shape[2:]))


def kind_of(module: Layer) -> type[Any]:
    """The PyTorch class of a layer, also for a subclass."""
    return next(kind for kind in LAYERS if isinstance(module, kind))


def make_layer(
    kind: type[Any], weight: nn.Parameter, bias: nn.Parameter | None = None, **options: Any
) -> Any:
    """Make a layer of this class in eval mode from these parameters, without drawing or copying.

    ``options`` are further arguments of the class.
    """
    module = kind(**options, bias=bias is not None, device="meta")
    module.weight, module.bias = weight, bias
    return module.eval()


def frozen_layer(kernel: torch.Tensor, dtype: torch.dtype, groups: int, **options: Any) -> Any:
    """Make a frozen layer without bias; it shares the features' memory if possible.

    The kernel is (c2, c0 / groups, *taps), without taps for a linear layer; ``options`` are stride
    and dilation.
    """
    outputs, inputs, *taps = kernel.shape
    weight = nn.Parameter(kernel.to(dtype), requires_grad=False)
    if not taps:
        return make_layer(nn.Linear, weight, in_features=inputs, out_features=outputs)
    options |= {"in_channels": groups * inputs, "out_channels": outputs, "groups": groups}
    return make_layer(PLAIN[len(taps)], weight, kernel_size=tuple(taps), **options)


def apply_kernel(
    x: torch.Tensor,
    kernel: torch.Tensor,
    bias: torch.Tensor | None = None,
    groups: int = 1,
    **options: Any,
) -> torch.Tensor:
    """Convolve padded x (N, c0, *sides) with a kernel, or multiply if it has no taps.

    The kernel is (c2, c0 / groups, *taps), the bias (c2,); ``options`` are stride and dilation.
    """
    if kernel.ndim == 2:
        return F.linear(x, kernel, bias)
    if groups == len(kernel) > 1 and kernel.shape[1] > 1 and bias is None:
        # One output per group: convolving each channel alone and summing is twice as fast.
        alone = kernel.flatten(0, 1)[:, None]
        single = CONVOLVE[kernel.ndim - 2](x, alone, groups=len(alone), **options)
        return single.unflatten(1, (groups, -1)).sum(2)
    return CONVOLVE[kernel.ndim - 2](x, kernel, bias, groups=groups, **options)
