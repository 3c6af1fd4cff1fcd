"""The machine: device, memory, bf16 units, and settings that make products fast or exact."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_info, threadpool_limits

from bnrecon.runtime.errors import UserError
from bnrecon.runtime.limits import available_host_memory, processor_limits

# Multiply-adds that justify another thread: below a millisecond's work.
THREAD_OPERATIONS = 3 * 10**7
ZEN_5 = 26  # its cpu family
CPUINFO = Path("/proc/cpuinfo")


def resolve_device(name: str) -> torch.device:
    """Turn ``auto``, ``cpu`` or ``cuda`` into a device; ``auto`` takes a GPU if there is one.

    Raises:
        UserError: ``cuda`` is requested without a GPU; there is no silent fallback.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device=cuda: torch sees no GPU here; use device=cpu, or device=auto for what there is"
        )
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def describe_device(device: torch.device) -> str:
    """The device's name for a reader: ``cpu (2 threads)`` or ``cuda (NVIDIA H200)``."""
    if device.type == "cuda":
        return f"cuda ({torch.cuda.get_device_name(device)})"
    threads = torch.get_num_threads()
    return f"cpu ({threads} thread{'' if threads == 1 else 's'})"


def available_memory(device: torch.device) -> int:
    """Bytes that can still be allocated on ``device``; on the host, under this process's limits."""
    if device.type == "cuda":
        # PyTorch's cache is available too.
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + cached
    return available_host_memory()


@contextlib.contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Run a block with this many processor threads, and at most as many in NumPy's products.

    ``None`` stands for the current number, but at most the number of this process's processors.

    The sums of a training step are split among the threads. So a trained network's last digits,
    and over many steps its accuracy, depend on their number.

    Raises:
        UserError: this process may use fewer processors.

    >>> with use_threads(1):
    ...     torch.get_num_threads()
    1
    """
    most = processor_count()
    if count is not None and count > most:
        raise UserError(f"threads={count}: this process has {most} processors; give at most {most}")
    count = count or min(torch.get_num_threads(), most)
    blas = [library for library in threadpool_info() if library["user_api"] == "blas"]
    fewest = min([count, *(library["num_threads"] for library in blas)])  # keep a user's limit
    with torch_threads(count), threadpool_limits(fewest, user_api="blas"):
        yield


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Run a block with this many of PyTorch's threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_for(operations: int) -> contextlib.AbstractContextManager[None]:
    """Run a block of products of so many multiply-adds, with only as many threads as pay off.

    Threads that share a small product wait for each other longer than they compute, and far longer
    if other processes use their processors.
    """
    count = max(1, operations // THREAD_OPERATIONS)
    if count >= torch.get_num_threads():
        return contextlib.nullcontext()
    return torch_threads(min(count, processor_count()))


def processor_count(proc: Path = Path("/proc"), environment: Mapping[str, str] = os.environ) -> int:
    """The number of processors that this process may use.

    It respects a container's share of processor time and the processors that Slurm granted.
    """
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    granted = environment.get("SLURM_CPUS_PER_TASK", "")
    limits = [int(granted)] if granted.isdecimal() and int(granted) else []
    return min([count, *limits, *processor_limits(proc)])


def has_fast_bfloat16(device: torch.device) -> bool:
    """Whether this device computes in bf16 (tensor cores, AMX, AVX-512 BF16, Arm BF16)."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    return not {"amx_bf16", "avx512_bf16", "bf16"}.isdisjoint(_processor_flags())


def has_fast_int8(device: torch.device) -> bool:
    """Whether PyTorch multiplies 8-bit integers with this processor's units (VNNI, AMX).

    Without oneDNN it uses a loop, which is slower than float32; if oneDNN may not use these units
    (``ONEDNN_MAX_CPU_ISA``), sums of two products saturate at 16 bits. False for GPUs: their
    integer products have not been tried.
    """
    onednn = torch.backends.mkldnn
    if device.type != "cpu" or not (onednn.is_available() and getattr(onednn, "enabled", True)):
        return False
    units = {"amx_int8", "avx512_vnni", "avx_vnni"}
    present = hasattr(torch, "_int_mm") and not units.isdisjoint(_processor_flags())
    return present and _integer_sums_are_exact()


def onednn_is_faster(device: torch.device) -> bool:
    """Whether oneDNN multiplies float32 with wider units than MKL: on AMD's Zen 5 and later.

    MKL, which PyTorch's LAPACK calls, uses 256-bit vectors on AMD's processors. Zen 4 has AVX-512,
    but also 256-bit units. The processor's model decides, not a measured product, so that a
    repeated run has the same bits.
    """
    libraries = torch.backends.mkldnn.is_available() and torch.backends.mkl.is_available()
    family = [int(entry) for entry in _processor_entry("cpu family") if entry.isdecimal()]
    amd = "AuthenticAMD" in _processor_entry("vendor_id") and "avx512f" in _processor_flags()
    return device.type == "cpu" and libraries and amd and max(family, default=0) >= ZEN_5


@functools.cache
def _integer_sums_are_exact() -> bool:
    largest = torch.full((64, 256), 127, dtype=torch.int8)
    return bool((torch._int_mm(largest, largest.T.contiguous()) == 256 * 127**2).all())


def _processor_flags() -> list[str]:
    return _processor_entry("flags", "Features")


def _processor_entry(*names: str) -> list[str]:
    if platform.system() != "Linux" or not CPUINFO.exists():
        return []
    with CPUINFO.open(encoding="utf-8") as lines:
        return next((line.split() for line in lines if line.startswith(names)), [])


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile can compile for a GPU: capability 7, Triton and a C compiler."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < 7:
        return False
    compiler = os.environ.get("CC") or any(map(shutil.which, ("cc", "gcc", "clang")))
    return bool(compiler) and importlib.util.find_spec("triton") is not None


def exact_float32() -> contextlib.AbstractContextManager[None]:
    """Run a block in full float32, without TF32, to compare target and source."""
    return float32_products(tf32=False)


@contextlib.contextmanager
def float32_products(tf32: bool) -> Iterator[None]:
    """Run a block with a GPU's float32 products and convolutions in TF32 or full float32."""
    backends: Any = torch.backends
    matmul, convolution = backends.cuda.matmul, backends.cudnn.conv
    before = matmul.fp32_precision, convolution.fp32_precision
    matmul.fp32_precision = convolution.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision, convolution.fp32_precision = before
