"""The results that ship inside an installed package, which are read and never written."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import tempfile
from pathlib import Path

from bnrecon.runtime.errors import UserError
from bnrecon.runtime.files import cache_folder

USUAL = Path("outputs")  # what the option outputs is by default

# A wheel holds its 1,400 small files as one (setup.py): a third of their size, and one file for
# package managers and shared disks. A checkout has no archive: what ships lies in its outputs/.
ARCHIVE = Path(__file__).parents[1] / "shipped.tar.xz"


def _unpacked() -> Path:
    """Where the archive is unpacked to: a folder of the user's cache, named by its content."""
    content = ARCHIVE.read_bytes() if ARCHIVE.is_file() else b""
    return cache_folder() / f"shipped-{hashlib.sha256(content).hexdigest()[:12]}"


PACKAGED = _unpacked()


def _has_packaged() -> bool:
    """Whether this package brings results, which are unpacked now if they never were."""
    if ARCHIVE.is_file() and not PACKAGED.is_dir():
        try:
            PACKAGED.parent.mkdir(parents=True, exist_ok=True)
            partial = Path(tempfile.mkdtemp(prefix=f"{PACKAGED.name}-", dir=PACKAGED.parent))
            with tarfile.open(ARCHIVE) as archive:
                archive.extractall(partial, filter="data")
            try:
                os.rename(partial, PACKAGED)
            except OSError:
                shutil.rmtree(partial)
                if not PACKAGED.is_dir():  # it is there if another process was faster
                    raise
        except OSError as error:
            raise UserError(
                f"{ARCHIVE.name}, the results that ship, cannot be unpacked to {PACKAGED}: "
                f"{error.strerror}; set XDG_CACHE_HOME to a folder that can be written"
            ) from None
    return PACKAGED.is_dir()


def shipped_folder() -> Path:
    """What ships: in the installed package, or in the outputs of a checkout."""
    return PACKAGED if _has_packaged() else Path(__file__).parents[2] / USUAL


def shipped_outputs(outputs: Path) -> Path:
    """Where what ships is read from, for somebody whose own results are in ``outputs``.

    It is ``outputs`` itself in a checkout, and wherever another folder was chosen: in a folder of
    their own everything can be computed anew.
    """
    return PACKAGED if outputs == USUAL and _has_packaged() else outputs


def is_packaged(path: Path) -> bool:
    """Whether a file belongs to the installed package."""
    return path.is_relative_to(PACKAGED)
