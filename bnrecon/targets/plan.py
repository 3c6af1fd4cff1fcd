"""How a target is trained on this machine: its ``TrainSpec``, precision and compiling resolved."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bnrecon.runtime.hardware import has_fast_bfloat16
from bnrecon.targets.spec import TrainSpec


@dataclass(frozen=True)
class TrainingPlan:
    """A ``TrainSpec`` and what it leaves to the machine, resolved."""

    spec: TrainSpec  # how to train
    dtype: torch.dtype  # of forward and backward pass (autocast); weights are float32
    # Whether to try torch.compile; if it fails, the network runs as it is unless spec.compile=on
    compiled: bool = False


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Resolve ``auto``, ``float32`` or ``bfloat16``.

    ``auto`` takes bfloat16 only where the device has units for it.
    """
    fast = precision == "bfloat16" or (precision == "auto" and has_fast_bfloat16(device))
    return torch.bfloat16 if fast else torch.float32
