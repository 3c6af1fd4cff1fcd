"""Where results come from: the commit and the versions of what computed them."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path

__all__ = ["commit", "versions"]


def versions() -> dict[str, str]:
    """Versions of Python, bnrecon and what it computes with."""
    names = ("bnrecon", "torch", "torchvision", "numpy", "scipy", "hydra-core")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version(), **found}


@functools.cache
def commit() -> str | None:
    """The checkout's commit, ``+`` appended where files differ from it; ``None`` outside a checkout.

    As it was when first asked, at the start: a checkout that moves during a long run is not what runs.
    """

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", *words],
                cwd=Path(__file__).parent,
                capture_output=True,
                text=True,
                timeout=10,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None  # an installed copy inside somebody else's checkout
    head = git("rev-parse", "--short=12", "HEAD")
    return (
        None
        if head is None
        else head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    )
