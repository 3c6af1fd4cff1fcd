"""Where results come from: the commit and the library versions that computed them."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import re
import subprocess
from pathlib import Path

__all__ = ["RECORDED", "commit", "versions"]


def versions() -> dict[str, str]:
    """Versions of Python, bnrecon and the libraries that it computes with."""
    names = ("bnrecon", "torch", "torchvision", "numpy", "scipy", "hydra-core")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version(), **found}


# In the package's folder, written beforehand where it is copied to a machine without git.
RECORDED = "commit.txt"


@functools.cache
def commit() -> str | None:
    """The checkout's commit, followed by ``+`` if files differ.

    As it was at the first call, at the start: a checkout may be edited during a long run. Outside
    a checkout it is the one that was recorded in the package's ``commit.txt``, or ``None``.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return _recorded()  # a copy, perhaps inside somebody else's checkout
    if (head := _git("rev-parse", "--short=12", "HEAD")) is None:
        return None
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _recorded() -> str | None:
    """The commit that was written down when the package was copied."""
    try:
        text = (Path(__file__).parents[1] / RECORDED).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if re.fullmatch(r"[0-9a-f]{12}\+?", text) else None


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
