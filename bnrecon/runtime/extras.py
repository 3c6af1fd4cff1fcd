"""How a user installs the libraries that not every installation has."""

from __future__ import annotations

import importlib.metadata

__all__ = ["install_command"]


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
