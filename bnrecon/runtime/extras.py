"""How a user installs the libraries that not every installation has."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable

from bnrecon.runtime.errors import UserError

# Each the name of a library and of its extra
TRACKERS = ("tensorboard", "trackio", "wandb", "mlflow")


def install_command(extra: str) -> str:
    """The command that adds the libraries of an extra of ``pyproject.toml``.

    An installed package is named, so that pip adds to it, whether it came from a wheel or from a
    clone. One that only lies on ``PYTHONPATH`` is unknown to pip and has to be named by its folder.

    >>> install_command("report")
    "pip install 'bnrecon[report]'"
    """
    try:
        importlib.metadata.distribution("bnrecon")
    except importlib.metadata.PackageNotFoundError:
        return f"pip install -e '.[{extra}]' in its source folder"
    return f"pip install 'bnrecon[{extra}]'"


def require_trackers(names: Iterable[str]) -> None:
    """Raise ``UserError`` where a tracker's library is missing; none is imported."""
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder of this name, as wandb leaves one
            raise UserError(f"tracker={name}: {name} is not installed; {install_command(name)}")
