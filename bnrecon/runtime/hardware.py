"""What this machine has: device, memory, fast bf16; and the settings that make its arithmetic fast or exact."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch

from bnrecon.runtime import memory
from bnrecon.runtime.errors import UserError

__all__ = [
    "available_memory",
    "can_compile",
    "describe",
    "exact_float32",
    "float32_products",
    "gigabytes",
    "has_fast_bfloat16",
    "keep_freed_memory",
    "resolve_device",
    "working_threads",
]


def resolve_device(name: str) -> torch.device:
    """Turn ``auto``, ``cpu`` or ``cuda`` into a device; ``auto`` takes a GPU where there is one.

    Raises ``UserError`` where ``cuda`` is asked for and absent: the run would otherwise go on elsewhere unsaid.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device=cuda: torch sees no GPU here; use device=cpu, or device=auto to take what there is"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def describe(device: torch.device) -> str:
    """Name the device as a person would: ``cpu (2 threads)`` or ``cuda (NVIDIA H200)``."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    return f"cpu ({torch.get_num_threads()} threads)"


def available_memory(device: torch.device) -> int:
    """Bytes that can still be taken on ``device``; on the host, under all limits on this process."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(
            device
        )  # torch's own cache: ours to use
        return torch.cuda.mem_get_info(device)[0] + held
    return memory.headroom()


@contextlib.contextmanager
def working_threads(count: int | None) -> Iterator[None]:
    """Run a block with so many threads of the processor, the caller's own number for ``None``.

    Sums of a training step are split among threads, so that a trained network's last digits, and where they add up its
    accuracy, depend on their number.

    Raises ``UserError`` for more than this process has processors.

    >>> with working_threads(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    there = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    if count is not None and count > there:
        raise UserError(
            f"threads={count}: this process has {there} processors; give at most so many"
        )
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def gigabytes(size: float) -> str:
    """Write a number of bytes for a person, in powers of 1000.

    >>> gigabytes(10.87e9)
    '10.9 GB'
    """
    if size >= 1e15:  # more than any machine holds
        return f"{size / 1e9:.3g} GB"
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether bf16 arithmetic has units of its own here (tensor cores, AMX, AVX-512 BF16, Arm BF16), not emulation."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    info = Path("/proc/cpuinfo")
    if platform.system() != "Linux" or not info.exists():
        return False
    for line in info.read_text(encoding="utf-8").splitlines():
        if line.startswith(("flags", "Features")):
            return not {"amx_bf16", "avx512_bf16", "bf16"}.isdisjoint(line.split())
    return False


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile has what it needs for a GPU here: capability 7, Triton and a C compiler."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < 7:
        return False
    compiler = (
        os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    )
    return bool(compiler) and importlib.util.find_spec("triton") is not None


def keep_freed_memory() -> bool:
    """Tell glibc's malloc to keep freed memory for the next step; return whether that was possible.

    A training step frees and takes the same large blocks again. By default they are given back to the kernel each time, and
    much of the time goes into page faults: on two cores (Zen 4), VGG18 of width 64 trained at 381 instead of 272 images/s in
    float32, and at 668 instead of 632 in bf16. Call it before the first large
    allocation: one arena (-8), never mmap (-4), never trim (-1).
    """
    if platform.system() != "Linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    settings = {-8: 1, -4: 0, -1: 2**31 - 1}
    return all(
        mallopt(ctypes.c_int(key), ctypes.c_int(value)) == 1 for key, value in settings.items()
    )


def exact_float32() -> contextlib.AbstractContextManager[None]:
    """Run a block in true float32: TF32 off, as accuracies of target and source are compared."""
    return float32_products(tf32=False)


@contextlib.contextmanager
def float32_products(tf32: bool) -> Iterator[None]:
    """Run a block with a GPU's float32 products and convolutions in TF32, or not, whatever PyTorch was told before."""
    matmul, convolution = torch.backends.cuda.matmul, torch.backends.cudnn
    name, value = "allow_tf32", tf32
    if hasattr(
        matmul, "fp32_precision"
    ):  # since torch 2.9, which refuses a mixture of both ways to say it
        convolution = torch.backends.cudnn.conv
        name, value = "fp32_precision", "tf32" if tf32 else "ieee"
    before = getattr(matmul, name), getattr(convolution, name)
    setattr(matmul, name, value)
    setattr(convolution, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before[0])
        setattr(convolution, name, before[1])
