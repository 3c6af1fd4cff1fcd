"""The module that replaces a layer in a network and moves over its input in the same way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import fx, nn

from bnrecon.construction.two_layer import TargetLayer
from bnrecon.reconstruction.geometry import geometry_of, pad
from bnrecon.reconstruction.kernels import Layer, apply_kernel, kernel_of, kind_of, weight_of


class ReplacedLayer(nn.Module):
    """Replaces a layer: has its type, geometry and constants, but not its weight.

    It is neither ``nn.Conv2d`` nor ``nn.Linear``, which code of the model may check. ``folded``
    says whether it includes a BatchNorm of the model.
    """

    def __init__(self, module: Layer, folded: bool = False):
        super().__init__()
        self.kind, self.geometry = kind_of(module), geometry_of(module)
        self.outputs, self.folded = len(kernel_of(module)), folded
        for name in module.__constants__:  # kernel_size, ...: other code may read them
            setattr(self, name, getattr(module, name))

    @abstractmethod
    def _apply_layer(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's outputs for a padded input."""

    def forward(
        self, input: torch.Tensor, output_size: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Apply the layer to (N, c0, *sides) or (c0, *sides), or to (..., c0) if linear."""
        dims = self.geometry.dims
        if not dims:
            if self.folded:
                refuse_sequences(self, (input,))
            rows = self._apply_layer(input.reshape(-1, input.shape[-1]))
            return rows.reshape(input.shape[:-1] + (self.outputs,))
        if not is_symbolic(input) and input.ndim == dims + 1:
            if self.folded and dims == 1:
                refuse_unbatched(self, (input,))
            return self(input[None], output_size)[0]
        output = self._apply_layer(pad(input, self.geometry, output_size))
        return output if is_symbolic(input) or not input.is_contiguous() else output.contiguous()


class TrialLayer(ReplacedLayer):
    """Computes exactly what a layer and its folded BatchNorm do, without features.

    Replacing every layer to be rebuilt by it shows, before anything is solved, whether the
    network's code bypasses its layers.
    """

    def __init__(self, module: Layer, target: TargetLayer, folded: bool):
        super().__init__(module, folded)
        dtype = module.weight.dtype
        kernel = target.weight if self.geometry.dims else target.weight[:, :, 0, 0]
        self.kernel = nn.Parameter(kernel.to(dtype), requires_grad=False)
        self.bias = nn.Parameter(target.bias.to(dtype), requires_grad=False)
        self.eval()

    def _apply_layer(self, x: torch.Tensor) -> torch.Tensor:
        groups = self.geometry.groups
        return apply_kernel(x, self.kernel, self.bias, groups, **self.geometry.movement)

    @property
    def weight(self) -> torch.Tensor:
        """The folded weight, for code that reads a layer's weight."""
        kernel = self.kernel if self.geometry.dims else self.kernel[:, :, None, None]
        return weight_of(kernel, self.kind, self.geometry.groups)


def is_symbolic(x: object) -> bool:
    """Whether x is a symbol of a trace (torch.fx), which has no shape."""
    return isinstance(x, fx.Proxy)


def is_recorded(x: object) -> bool:
    """Whether operations are recorded in a graph: torch.export, torch.jit.trace, torch.fx."""
    traced = torch.jit.is_tracing()  # type: ignore[attr-defined]
    return is_symbolic(x) or traced or torch.compiler.is_exporting()


def is_mapped(x: torch.Tensor) -> bool:
    """Whether x is inside torch.vmap, which no sum or count can leave."""
    return torch._C._functorch.is_batchedtensor(x)


def refuse_sequences(_layer: nn.Module, inputs: tuple[torch.Tensor]) -> None:
    """Raise ``ValueError`` for the input of a linear layer whose BatchNorm1d would see sequences.

    Also a hook, for torch.fx and torch.jit.script too, of the layer that a folded one collapses to.
    """
    if isinstance(inputs[0], torch.Tensor) and inputs[0].ndim > 2:
        why = "BatchNorm1d on a sequence normalizes its second dimension"
        raise ValueError(f"{why}; such a layer cannot be rebuilt folded")


def refuse_unbatched(_layer: nn.Module, inputs: tuple[torch.Tensor]) -> None:
    """Raise ``ValueError`` for the input (c0, length) of a one-dimensional convolution."""
    if isinstance(inputs[0], torch.Tensor) and inputs[0].ndim == 2:
        why = "BatchNorm1d on (channels, length) normalizes its second dimension"
        raise ValueError(f"{why}; give the layer, which was rebuilt folded, a batch")
