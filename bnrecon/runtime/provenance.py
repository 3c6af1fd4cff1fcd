"""Where results come from: the commit and the library versions that computed them."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path

__all__ = ["commit", "versions"]


def versions() -> dict[str, str]:
    """Versions of Python, bnrecon and the libraries that it computes with."""
    names = ("bnrecon", "torch", "torchvision", "numpy", "scipy", "hydra-core")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version(), **found}


@functools.cache
def commit() -> str | None:
    """The checkout's commit, followed by ``+`` if files differ; ``None`` outside a checkout.

    As it was at the first call, at the start: a checkout may be edited during a long run.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # an installed copy inside somebody else's checkout
    if (head := _git("rev-parse", "--short=12", "HEAD")) is None:
        return None
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _git(*arguments: str) -> str | None:
    """What a git command prints; ``None`` where it fails or there is no git."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
