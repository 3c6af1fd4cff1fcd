"""Which trackers there are, and whether their libraries are installed; none is imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from bnrecon.runtime.errors import UserError
from bnrecon.runtime.extras import install_command

__all__ = ["NAMES", "require_libraries"]

NAMES = ("tensorboard", "trackio", "wandb")  # each the name of the library and of the extra too


def require_libraries(names: Iterable[str]) -> None:
    """Raise ``UserError`` where a tracker's library is missing."""
    for name in names:
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:  # a folder of this name, as wandb leaves one
            raise UserError(f"tracker={name}: {name} is not installed; {install_command(name)}")
