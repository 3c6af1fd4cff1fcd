"""glibc's malloc: keep freed memory for the next batch, or return it."""

from __future__ import annotations

import contextlib
import ctypes
import platform
from collections.abc import Iterator

ARENAS, MMAPS, LEAST_MMAP, TRIM = -8, -4, -3, -1  # parameters of mallopt
KEEPING = {ARENAS: 1, MMAPS: 0, TRIM: 2**31 - 1}
# The default, and the sizes up to which malloc raises its thresholds itself.
RETURNING = {MMAPS: 65_536, LEAST_MMAP: 2**25, TRIM: 2**26}

_open = 0  # open blocks of ``keep_freed_memory``: the setting is global


@contextlib.contextmanager
def keep_freed_memory() -> Iterator[None]:
    """Let malloc keep freed memory while a block runs a network, and return it afterwards.

    Each batch frees and allocates the same large blocks. By default they return to the kernel each
    time, which costs page faults: a large part of the time of some trainings. So there is one arena
    (permanently, once it is set), nothing is mapped, and the heap is not trimmed. With blocks of
    many sizes, as in solving, a heap that is never trimmed grows beyond what is used at any time.
    Blocks may be nested; the outermost one returns the memory.
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
    """Return freed memory that malloc keeps, which the system counts as used."""
    if (trim := _function("malloc_trim")) is not None:
        trim(ctypes.c_size_t(0))


def _set(options: dict[int, int]) -> None:
    if (mallopt := _function("mallopt")) is not None:
        for key, value in options.items():
            mallopt(ctypes.c_int(key), ctypes.c_int(value))


def _function(name: str) -> ctypes._NamedFuncPointer | None:
    """A function of the C library; ``None`` if it is not glibc."""
    if platform.system() != "Linux":
        return None
    return getattr(ctypes.CDLL(None), name, None)
