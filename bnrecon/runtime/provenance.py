"""The origin of results: commit, library versions, time, host and command."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path


def versions() -> dict[str, str]:
    """Versions of Python, bnrecon and the libraries that it computes with.

    ``torch`` includes its build, as in ``2.9.0+cu128``. ``cuda`` and ``cudnn`` are the versions it
    was built for, ``nvidia_driver`` is the machine's; each may be absent.
    """
    import torch  # not at the top: the command line loads this module without torch

    names = ("bnrecon", "torch", "torchvision", "numpy", "scipy", "hydra-core")
    by_library = {name: importlib.metadata.version(name) for name in names}
    by_library["torch"] = str(torch.__version__)
    return {"python": platform.python_version(), **by_library, **gpu_versions()}


def gpu_versions(driver: Path = Path("/sys/module/nvidia/version")) -> dict[str, str]:
    """Versions of torch's GPU libraries; none for a torch without CUDA."""
    import torch

    if torch.version.cuda is None:
        return {}
    by_library = {"cuda": torch.version.cuda}
    if (cudnn := torch.backends.cudnn.version()) is not None:
        by_library["cudnn"] = str(cudnn)
    with contextlib.suppress(OSError):  # no driver, or not Linux
        by_library["nvidia_driver"] = driver.read_text(encoding="utf-8").strip()
    return by_library


def now() -> str:
    """The time in UTC, as ISO 8601 writes it: ``2026-01-31T09:05:00Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def host() -> str:
    """The machine's name, without its domain."""
    return platform.node().partition(".")[0]


_started_as: list[str] = []


@contextlib.contextmanager
def started_as(words: Sequence[str]) -> Iterator[None]:
    """Record ``bnrecon WORDS`` as the command in the block: Hydra changes ``sys.argv``."""
    before = list(_started_as)
    _started_as[:] = ["bnrecon", *words]
    try:
        yield
    finally:
        _started_as[:] = before


def command() -> str:
    """The command that started this process; the program is named without its folder.

    >>> with started_as(["run", "seeds=[0, 1]"]):
    ...     command()
    "bnrecon run 'seeds=[0, 1]'"
    """
    program, *rest = _started_as or sys.argv or ["python"]  # an embedded interpreter has none
    return shlex.join([Path(program).name, *rest])


# In the package's folder, written when it is copied to a machine without git.
RECORDED = "commit.txt"


@functools.cache
def commit() -> str | None:
    """The checkout's commit, followed by ``+`` if files differ.

    It is read once, at the start: a checkout may be edited during a long run. Outside a checkout it
    is the commit recorded in the package's ``commit.txt``, or ``None``.
    """
    if _git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return _recorded()  # a copy, perhaps inside somebody else's checkout
    if (head := _git("rev-parse", "--short=12", "HEAD")) is None:
        return None
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _recorded() -> str | None:
    try:
        text = (Path(__file__).parents[1] / RECORDED).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if re.fullmatch(r"[0-9a-f]{12}\+?", text) else None


def _git(*arguments: str) -> str | None:
    """The output of a git command; ``None`` if it fails or there is no git."""
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
