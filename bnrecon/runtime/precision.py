"""The precisions of products: int8, bf16, TF32, float32, float64."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass

import torch

from bnrecon.runtime.hardware import float32_products, has_fast_bfloat16


@dataclass(frozen=True)
class Precision:
    """The precision of an operator's products."""

    name: str  # its name in reports
    factors: torch.dtype  # type in which matrices are stored and multiplied
    vectors: torch.dtype  # type of input and output vectors
    tf32: bool = False  # round float32 factors to TF32
    integer_gradients: bool = False  # M^T y in 8-bit integers, M x as above

    @classmethod
    def of(cls, dtype: torch.dtype) -> Precision:
        """The precision of factors of this dtype."""
        return {torch.bfloat16: BFLOAT16, torch.float32: FLOAT32, torch.float64: FLOAT64}[dtype]

    def with_integer_gradients(self) -> Precision:
        """This precision for M x, and 8-bit integers for M^T y: ``operators.integers``."""
        return dataclasses.replace(self, name=f"{self.name} and int8", integer_gradients=True)

    def products(self) -> contextlib.AbstractContextManager[None]:
        """The context in which products have this precision."""
        return float32_products(tf32=True) if self.tf32 else contextlib.nullcontext()


# For random signs and vectors rounded to whole numbers: ``operators.integers``.
INT8 = Precision("int8", torch.int8, torch.float64)

BFLOAT16 = Precision("bfloat16", torch.bfloat16, torch.float32)

TF32 = Precision("tf32", torch.float32, torch.float32, tf32=True)

FLOAT32 = Precision("float32", torch.float32, torch.float32)

FLOAT64 = Precision("float64", torch.float64, torch.float64)


def precision_schedule(device: torch.device) -> list[Precision]:
    """The precisions of successive inner solves on this device: the fastest first, float64 last.

    Only those for which the device has units: bf16 with AMX, AVX-512 BF16, Arm BF16 or tensor
    cores, TF32 with tensor cores. Splitting factors into sums of bf16 numbers is no option: on a
    CPU PyTorch rounds a bf16 product to bf16, and a device with tensor cores has TF32.
    """
    schedule = [FLOAT32, FLOAT64]
    if has_fast_bfloat16(device):
        schedule = [BFLOAT16, *([TF32] if device.type == "cuda" else []), *schedule]
    return schedule
