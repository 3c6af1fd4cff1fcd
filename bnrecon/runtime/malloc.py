"""glibc's malloc: freed memory is kept for the next batch, or given back."""

from __future__ import annotations

import contextlib
import ctypes
import platform
from collections.abc import Iterator

ARENAS, MMAPS, LEAST_MMAP, TRIM = -8, -4, -3, -1  # what mallopt sets
KEEPING = {ARENAS: 1, MMAPS: 0, TRIM: 2**31 - 1}
# The defaults, and the sizes up to which malloc itself raises its thresholds.
RETURNING = {MMAPS: 65_536, LEAST_MMAP: 2**25, TRIM: 2**26}

_open = 0  # blocks of ``keep_freed_memory``; the setting is the process's


@contextlib.contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Have malloc keep freed memory while a block runs a network; afterwards it is given back.

    Each batch frees and allocates the same large blocks again. By default they go back to the
    kernel each time, and much time goes into page faults: on two cores (Zen 4), VGG18 of width 64
    trained at 381 instead of 272 images/s in float32, and at 668 instead of 632 in bf16; 64 images
    went through a source of width 16 in 1.3 instead of 2.3 s of one core. So there is one arena
    (for good, once it is set), nothing is mapped, and the heap is not trimmed. Where blocks are of
    many sizes, as in solving, a heap that is never trimmed grows beyond what is used at any time.
    Blocks may lie in each other; the outermost gives back.
    """
    global _open
    _open += 1
    if _open == 1:
        _set(KEEPING)
    try:
        yield
    finally:
        _open -= 1
        if _open == 0:
            _set(RETURNING)
            return_freed_memory()


def return_freed_memory() -> None:
    """Give back what was freed and malloc still has: the system counts it as used."""
    if (trim := _function("malloc_trim")) is not None:
        trim(ctypes.c_size_t(0))


def _set(options: dict[int, int]) -> None:
    if (mallopt := _function("mallopt")) is not None:
        for key, value in options.items():
            mallopt(ctypes.c_int(key), ctypes.c_int(value))


def _function(name: str) -> ctypes._NamedFuncPointer | None:
    """One of the C library's functions; ``None`` where it is not glibc."""
    if platform.system() != "Linux":
        return None
    return getattr(ctypes.CDLL(None), name, None)
