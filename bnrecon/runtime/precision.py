"""The arithmetics that products can run in: bf16 and TF32 where a device is fast at them, float32, float64."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import torch

from bnrecon.runtime.hardware import float32_products, has_fast_bfloat16

__all__ = ["BFLOAT16", "FLOAT32", "FLOAT64", "TF32", "Arithmetic", "ladder"]


@dataclass(frozen=True)
class Arithmetic:
    """Matrices are stored and multiplied as ``factors``, vectors kept as ``vectors``; ``tf32`` rounds float32 factors to TF32."""

    name: str
    factors: torch.dtype
    vectors: torch.dtype
    tf32: bool = False

    @classmethod
    def of(cls, dtype: torch.dtype) -> Arithmetic:
        """The arithmetic of factors of this dtype."""
        return {torch.bfloat16: BFLOAT16, torch.float32: FLOAT32, torch.float64: FLOAT64}[dtype]

    def products(self) -> contextlib.AbstractContextManager[None]:
        """The context that this arithmetic's products run in."""
        return float32_products(tf32=True) if self.tf32 else contextlib.nullcontext()


BFLOAT16 = Arithmetic("bfloat16", torch.bfloat16, torch.float32)


TF32 = Arithmetic("tf32", torch.float32, torch.float32, tf32=True)


FLOAT32 = Arithmetic("float32", torch.float32, torch.float32)


FLOAT64 = Arithmetic("float64", torch.float64, torch.float64)


def ladder(device: torch.device) -> list[Arithmetic]:
    """The arithmetics an inner solve climbs through on this device, the fastest first, float64 last.

    Only those that the device has units for: bf16 by AMX, AVX-512 BF16, Arm BF16 or tensor cores, TF32 by tensor cores. Splitting
    factors into sums of bf16 numbers is no rung of its own: PyTorch's bf16 product rounds its result to bf16 on a CPU,
    and where tensor cores are, TF32 is there too.
    """
    rungs = [FLOAT32, FLOAT64]
    if has_fast_bfloat16(device):
        rungs = [BFLOAT16, *([TF32] if device.type == "cuda" else []), *rungs]
    return rungs
