"""Variables of the environment that the processes of a block inherit."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set variables for the block; afterwards they are as before.

    >>> with environment(OMP_NUM_THREADS="1"):
    ...     os.environ["OMP_NUM_THREADS"]
    '1'
    """
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def short_waits(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variable by which threads that wait for others sleep soon, unless the user chose.

    libgomp's threads otherwise spin for milliseconds. Where other processes take the processors
    they then keep those that they wait for from computing. Torch reads it when it is loaded.

    >>> short_waits({}), short_waits({"OMP_WAIT_POLICY": "active"})
    ({'GOMP_SPINCOUNT': '1000'}, {})
    """
    chosen = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(variables)
    return {} if chosen else {"GOMP_SPINCOUNT": "1000"}
