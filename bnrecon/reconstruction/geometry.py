"""How a layer moves over its input: stride, dilation, padding, zeros in between; and M = I."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.features.shapes import LayerShape
from bnrecon.reconstruction.kernels import CONVOLVE, TRANSPOSED, Layer


@dataclass(frozen=True)
class Geometry:
    """How a layer moves over its input; a linear layer has no spatial sides."""

    kernel: tuple[int, ...] = ()  # sides of the kernel, as for the next two
    stride: tuple[int, ...] = ()  # of the convolution
    dilation: tuple[int, ...] = ()  # of its kernel
    # In the order of ``F.pad``, last side first: (left, right, top, bottom). All padding comes
    # before the first source layer
    pads: tuple[int, ...] = ()
    pad_mode: str = "constant"  # as of ``F.pad``
    groups: int = 1  # of channels
    # For a transposed convolution, the distance between inputs after inserting zeros
    spread: tuple[int, ...] = ()

    @property
    def dims(self) -> int:
        """The number of spatial dimensions."""
        return len(self.kernel)

    @property
    def movement(self) -> dict[str, Any]:
        """Stride and dilation as arguments of a convolution."""
        return {"stride": self.stride, "dilation": self.dilation} if self.kernel else {}


def geometry_of(module: Layer) -> Geometry:
    """Read a module's stride, dilation and padding; ``same`` and asymmetric padding included.

    >>> geometry_of(nn.Conv1d(2, 3, 4, padding="same")).pads
    (1, 2)
    """
    if isinstance(module, nn.Linear):
        return Geometry()
    # What PyTorch reads when called, since code may have changed it: the weight's sides, numbers in
    # place of tuples, and the pads of a padding that is not by zeros.
    kernel = tuple(module.weight.shape[2:])
    stride, dilation = (_by_side(value, kernel) for value in (module.stride, module.dilation))
    reach = [step * (side - 1) for step, side in zip(dilation, kernel, strict=True)]
    spread: tuple[int, ...] = ()
    padding: Any = module.padding
    if isinstance(module, TRANSPOSED):  # below 0 where the spread image is cropped
        stride, spread = (1,) * len(kernel), stride
        sides, more = _by_side(padding, kernel), _by_side(module.output_padding, kernel)
        between = [(r - p, r - p + o) for r, p, o in zip(reach, sides, more, strict=True)]
    elif padding == "same":
        between = [(total // 2, total - total // 2) for total in reach]
    else:
        sides = _by_side(0 if padding == "valid" else padding, kernel)
        between = [(side, side) for side in sides]
    pads, mode = tuple(number for pair in reversed(between) for number in pair), "constant"
    if module.padding_mode != "zeros":
        pads, mode = tuple(module._reversed_padding_repeated_twice), module.padding_mode
    return Geometry(kernel, stride, dilation, pads, mode, module.groups, spread)


def _by_side(value: int | Sequence[int], kernel: tuple[int, ...]) -> tuple[int, ...]:
    """Return one number per side; a single one holds for all."""
    numbers = (value,) if isinstance(value, int) else tuple(value)
    return tuple(map(int, numbers)) * (len(kernel) if len(numbers) == 1 else 1)


def pad(
    x: torch.Tensor, geometry: Geometry, output_sides: Sequence[int] | None = None
) -> torch.Tensor:
    """Pad a layer's input x (N, c0, *sides) as the target does.

    For a transposed convolution, ``output_sides`` may replace its default output size.
    """
    pads = geometry.pads
    if geometry.spread:
        x = _spread(x, geometry.spread)
        if output_sides is not None:
            pads = _pads_for(x, geometry, output_sides)
    return F.pad(x, pads, geometry.pad_mode) if any(pads) else x


def _spread(x: torch.Tensor, distances: Sequence[int]) -> torch.Tensor:
    """Insert zeros between pixels."""
    sides = [(side - 1) * step + 1 for side, step in zip(x.shape[2:], distances, strict=True)]
    spread = x.new_zeros(*x.shape[:2], *sides)
    take(spread, [slice(None, None, step) for step in distances]).copy_(x)
    return spread


def _pads_for(x: torch.Tensor, geometry: Geometry, output_sides: Sequence[int]) -> tuple[int, ...]:
    """The pads with which a spread input gives an output of these sides."""
    pads, dims = list(geometry.pads), geometry.dims
    for dim, side in enumerate(output_sides[-dims:]):
        last = 2 * (dims - dim) - 1
        reach = geometry.dilation[dim] * (geometry.kernel[dim] - 1)
        pads[last] += side - (x.shape[2 + dim] + pads[last - 1] + pads[last] - reach)
        beyond = pads[last] - pads[last - 1]
        if not 0 <= beyond < max(geometry.spread[dim], geometry.dilation[dim]):
            raise ValueError(f"output_size={tuple(output_sides)}: not possible for this input")
    return tuple(pads)


def centre(
    x: torch.Tensor, geometry: Geometry, sides: Sequence[int], strided: bool = False
) -> torch.Tensor:
    """The part of a padded x (N, c0, *sides) that the kernel's centre passes over.

    ``sides`` are the layer's output sides; its strides are applied if ``strided``.
    """
    return _at_tap(x, [side // 2 for side in geometry.kernel], geometry, sides, strided)


def _at_tap(
    x: torch.Tensor,
    tap: Sequence[int],
    geometry: Geometry,
    sides: Sequence[int],
    strided: bool = False,
) -> torch.Tensor:
    """What one tap of a kernel passes over, as a view, with or without strides."""
    along = zip(tap, geometry.stride, geometry.dilation, sides, strict=True)
    window = [
        slice(i * dilation, i * dilation + (side - 1) * step + 1, step if strided else 1)
        for i, step, dilation, side in along
    ]
    return take(x, window)


def take(x: torch.Tensor, sides: Sequence[slice]) -> torch.Tensor:
    """Slice the last sides, as a view."""
    index: Any = (..., *sides)
    return x[index]


def identity_output(
    x: torch.Tensor,
    scale: torch.Tensor,
    shift: torch.Tensor,
    shape: LayerShape,
    geometry: Geometry,
    activation: Callable[[torch.Tensor], torch.Tensor] | None,
) -> torch.Tensor:
    """Sum φ(s_l x_j + t_l) over the features l = (i, tap, j) of each output i.

    This is the output of B, (N, c2, *sides), for M = I, without forming weights. The padded input x
    is (N, c0, *sides), the first normalization's scale s and shift t are (groups n,), and ``shape``
    is one group's. Without φ the sum is one convolution.
    """
    table = (-1, shape.taps, shape.inputs)
    scale, shift = scale.reshape(table), shift.reshape(table)
    if activation is None:
        kernel = scale.transpose(1, 2).reshape(-1, shape.inputs, *geometry.kernel)
        bias = shift.sum((1, 2))
        if not geometry.dims:  # known also in a trace, whose symbols have no dimensions
            return F.linear(x, kernel, bias)
        convolve = CONVOLVE[geometry.dims]
        return convolve(x, kernel, bias, groups=geometry.groups, **geometry.movement)
    sizes = (x.shape[2:], geometry.kernel, geometry.stride, geometry.dilation)
    sides = [
        (side - dilation * (kernel - 1) - 1) // step + 1
        for side, kernel, step, dilation in zip(*sizes, strict=True)
    ]
    taps = itertools.product(*map(range, geometry.kernel))
    seen = [_at_tap(x, tap, geometry, sides, strided=True) for tap in taps]
    groups = torch.stack(seen, 1).reshape(len(x), len(seen), geometry.groups, shape.inputs, -1)
    outputs = [
        activation(s[..., None] * groups[:, :, output // shape.outputs] + t[..., None]).sum((1, 2))
        for output, (s, t) in enumerate(zip(scale, shift, strict=True))
    ]
    return torch.stack(outputs, 1).reshape(len(x), len(scale), *sides)
