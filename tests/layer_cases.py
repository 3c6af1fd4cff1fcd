"""Layers of every type with all kernel options, and inputs for them, in float64."""

import itertools

import torch
from torch import nn

from bnrecon.reconstruction.kernels import LAYERS

# Options of kernels with 1, 2 or 3 sides of up to 3 taps; side lengths are per dimension.
PLAIN = {
    "valid": {},
    "strided": {"stride": (2, 1, 3), "padding": (1, 0, 2)},
    "same": {"padding": "same", "dilation": (2, 1, 1)},
    "reflected": {"padding": (1, 1, 0), "padding_mode": "reflect"},
    "replicated": {"padding": (2, 1, 1), "padding_mode": "replicate", "stride": (1, 2, 1)},
    "circular": {"padding": (1, 2, 1), "padding_mode": "circular", "dilation": (1, 2, 1)},
    "grouped": {"groups": 2, "padding": (1, 1, 1)},
    "depthwise": {"groups": 4, "stride": (2, 2, 1), "padding": (1, 2, 0), "dilation": (1, 2, 1)},
    "dilated": {"padding": (2, 1, 1), "dilation": (2, 3, 1), "stride": (1, 2, 1)},
    "one tap": {"kernel_size": (1, 1, 1), "stride": (2, 1, 2), "padding": (0, 1, 1)},
    "even": {"kernel_size": (4, 2, 2), "padding": (1, 2, 0)},
    "grouped, dilated": {"groups": 2, "stride": (1, 2, 1), "dilation": (2, 2, 1)},
    "grouped, reflected": {"groups": 2, "padding": (1, 1, 1), "padding_mode": "reflect"},
}
TRANSPOSED = {
    "valid": {},
    "strided": {"stride": (2, 1, 3)},
    "cropped": {"stride": (3, 2, 2), "padding": (2, 1, 1), "output_padding": (1, 1, 0)},
    "cropped past the kernel": {"stride": (2, 2, 2), "padding": (3, 2, 3)},
    "dilated": {"dilation": (2, 3, 1), "padding": (1, 0, 2), "output_padding": (0, 1, 0)},
    "grouped": {"groups": 2, "stride": (2, 2, 2), "padding": (1, 1, 1)},
    "depthwise": {"groups": 4, "stride": (2, 3, 1), "output_padding": (1, 2, 0)},
    "strided, dilated": {"stride": (2, 3, 2), "dilation": (2, 1, 3), "padding": (1, 1, 0)},
    "one tap": {"kernel_size": (1, 1, 1), "stride": (2, 1, 2)},
    "grouped, dilated": {"groups": 2, "stride": (2, 1, 1), "dilation": (2, 3, 1)},
}
SIDES, KERNEL = (6, 7, 5), (3, 2, 3)
DIMS = {nn.Linear: 0, nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}
DIMS |= {nn.ConvTranspose1d: 1, nn.ConvTranspose2d: 2, nn.ConvTranspose3d: 3}


def options_of(kind):
    if kind is nn.Linear:
        return {"valid": {}}
    return TRANSPOSED if "Transpose" in kind.__name__ else PLAIN


CASES = [
    (kind, name, bias)
    for number, kind in enumerate(LAYERS)
    for name, bias in zip(options_of(kind), itertools.cycle((True, False)), strict=False)
]


def make(kind, name, bias, seed=0):
    """A layer of a type and an input for it."""
    torch.manual_seed(seed)
    dims = DIMS[kind]
    options = {
        key: value[:dims] if isinstance(value, tuple) else value
        for key, value in options_of(kind)[name].items()
    }
    groups = options.get("groups", 1)
    inputs, outputs = (3, 4) if groups == 1 else (4, 8)
    kernel = options.pop("kernel_size", KERNEL[:dims])
    arguments = (inputs, outputs) if dims == 0 else (inputs, outputs, kernel)
    layer = kind(*arguments, bias=bias, **options).double().eval()
    return layer, torch.randn(3, inputs, *SIDES[:dims], dtype=torch.float64)


def label(value):
    return value.__name__ if isinstance(value, type) else str(value)
