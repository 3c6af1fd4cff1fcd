"""Weights from a user's file, instead of a training: safetensors, never a pickle."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from bnrecon.runtime import files
from bnrecon.runtime.digests import tensor_digest
from bnrecon.runtime.errors import UserError, first_line, printable, shorten

PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl")
COUNTER = "num_batches_tracked"  # BatchNorm's: some files lack it, and nothing depends on it


def load_weights(network: nn.Module, path: str) -> None:
    """Load a file's weights into a network.

    Raises:
        UserError: they cannot be read, or do not fit this network.
    """
    weights = _read(path)
    if reason := _misfit(network.state_dict(), weights):
        raise UserError(f"target.weights={path}: does not fit the target: {printable(reason)}")
    network.load_state_dict(weights, strict=False)


def weights_digest(path: str) -> str:
    """SHA-256 of a file's weights, cached while the file does not change.

    Raises:
        UserError: they cannot be read.
    """
    return _digest(path, files.state(_expanded(path)))


@functools.lru_cache(maxsize=8)
def _digest(path: str, _state: tuple[int, int, int] | None) -> str:
    return tensor_digest(_read(path))


def _expanded(path: str) -> Path:
    return Path(os.path.expanduser(path))  # shells do not expand ~ after =


def _read(path: str) -> dict[str, torch.Tensor]:
    option = f"target.weights={path}"
    file = _expanded(path)
    if file.suffix.lower() in PICKLES:
        raise UserError(
            f"{option}: pickles are never read; write its state_dict with "
            "safetensors.torch.save_file, and give that file"
        )
    try:
        files.require_regular(file)
        return load_file(file)
    except FileNotFoundError:
        raise UserError(f"{option}: there is no such file") from None
    except (OSError, ValueError, SafetensorError) as error:
        reason = first_line(error)
        raise UserError(f"{option}: is not a whole safetensors file ({reason})") from None


def _misfit(state: Mapping[str, torch.Tensor], weights: Mapping[str, torch.Tensor]) -> str | None:
    missing = [name for name in state if name not in weights and not name.endswith(COUNTER)]
    unexpected = [name for name in weights if name not in state]
    if missing:
        return f"it lacks {shorten(missing)}"
    if unexpected:
        return f"the target has no {shorten(unexpected)}"
    for name, value in weights.items():
        if value.shape != state[name].shape:
            sizes = tuple(value.shape), tuple(state[name].shape)
            return f"{name} has the shape {sizes[0]}, the target's {sizes[1]}"
        expected = state[name].dtype
        if expected.is_floating_point and not value.is_floating_point():  # such as quantized ones
            kinds = (str(kind).removeprefix("torch.") for kind in (value.dtype, expected))
            return "{} has {} numbers, the target's {}".format(name, *kinds)
    return None
