"""How to install optional libraries."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable

from bnrecon.runtime.errors import UserError

# Names of libraries and of their extras
TRACKERS = ("tensorboard", "trackio", "wandb", "mlflow")


def install_command(extra: str) -> str:
    """The command that installs an extra of ``pyproject.toml``.

    It names the installed package, so that pip adds to it, whether from a wheel or a clone. A
    package that is only on ``PYTHONPATH`` is unknown to pip and has to be named by its folder.

    >>> install_command("report")
    "pip install 'bnrecon[report]'"
    """
    try:
        importlib.metadata.distribution("bnrecon")
    except importlib.metadata.PackageNotFoundError:
        return f"pip install -e '.[{extra}]' in its source folder"
    return f"pip install 'bnrecon[{extra}]'"


def require_trackers(names: Iterable[str]) -> None:
    """Raise ``UserError`` if a tracker's library is missing; imports none."""
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # only a folder of this name, such as wandb creates
            raise UserError(f"tracker={name}: {name} is not installed; {install_command(name)}")
