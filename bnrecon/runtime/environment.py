"""Variables of the environment that the processes of a block inherit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["environment"]


@contextlib.contextmanager
def environment(**given: str) -> Iterator[None]:
    """Set variables for the block; afterwards they are as before.

    >>> with environment(OMP_NUM_THREADS="1"):
    ...     os.environ["OMP_NUM_THREADS"]
    '1'
    """
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
