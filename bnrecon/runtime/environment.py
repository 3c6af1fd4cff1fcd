"""Environment variables that processes inherit within a block, and the user's cache."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path


@contextlib.contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set variables within the block, and restore them after it.

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
    """The variable that makes waiting threads sleep early, unless the user has set one.

    Otherwise libgomp's threads spin for milliseconds, and on busy processors keep the threads that
    they wait for from computing. Torch reads the variable when it is loaded.

    >>> short_waits({}), short_waits({"OMP_WAIT_POLICY": "active"})
    ({'GOMP_SPINCOUNT': '1000'}, {})
    """
    chosen = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(variables)
    return {} if chosen else {"GOMP_SPINCOUNT": "1000"}


def user_cache() -> Path:
    """The package's folder in the user's cache; ``RuntimeError`` without a home folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bnrecon"
