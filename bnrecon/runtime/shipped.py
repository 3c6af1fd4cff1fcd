"""The results that ship with the package, which are read and never written.

A wheel holds them as an archive (``setup.py``), which is unpacked at the first read.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import logging
import lzma
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from bnrecon.runtime.environment import user_cache

DEFAULT_OUTPUTS = Path("outputs")  # default of the option outputs

# A checkout has no such file: its shipped results are in outputs/.
ARCHIVE = Path(__file__).parents[1] / "shipped" / "results.tar.xz"
COUNT = "number of files"  # a file with the unpacked ones

logger = logging.getLogger(__name__)


@functools.cache
def packaged() -> Path | None:
    """The folder of an installed package's results, in the user's cache; ``None`` in a checkout.

    Without a writable cache it is a temporary folder, which this process removes. It is ``None``
    too, with a warning, if the archive is damaged or there is no room for its files.
    """
    if not ARCHIVE.is_file():
        return None
    problem: Exception | None = None
    for parent in (user_cache, _temporary_folder):
        try:
            if (folder := parent()) is not None:
                return _unpack(folder)
        except (OSError, tarfile.TarError, lzma.LZMAError, EOFError) as error:
            problem = error
    logger.warning("%s, which ships, cannot be unpacked: %s", ARCHIVE, problem)
    return None


def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="bnrecon-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _unpack(parent: Path) -> Path:
    """The folder of the archive's files in ``parent``, which is created atomically."""
    digest = hashlib.sha256(ARCHIVE.read_bytes()).hexdigest()
    folder = parent / f"results-{digest[:16]}"
    if _is_whole(folder):
        return folder
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{folder.name}-") as partial:
        with tarfile.open(ARCHIVE, mode="r:xz") as archive:
            archive.extractall(partial, filter="data")
            Path(partial, COUNT).write_text(str(len(archive.getnames())), encoding="utf-8")
        if _is_whole(folder):  # another process was faster
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.rename(partial, folder)
        except OSError:
            if not _is_whole(folder):  # by another process
                raise
    return folder


def _is_whole(folder: Path) -> bool:
    """Whether no file is missing: a cleaner of caches may remove some."""
    try:
        count = int((folder / COUNT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return count == sum(1 for _ in folder.rglob("*.json"))


def shipped_folder() -> Path:
    """The folder of shipped results: of the installed package, or a checkout's outputs."""
    return packaged() or Path(__file__).parents[2] / DEFAULT_OUTPUTS


def shipped_outputs(outputs: Path) -> Path:
    """The folder to read shipped results from, for a user with results in ``outputs``.

    It is ``outputs`` itself in a checkout, and if another folder was chosen: in such a folder
    everything can be computed anew.
    """
    return packaged() or outputs if outputs == DEFAULT_OUTPUTS else outputs


def is_packaged(path: Path) -> bool:
    """Whether a file belongs to the installed package."""
    folder = packaged()
    return folder is not None and path.is_relative_to(folder)
