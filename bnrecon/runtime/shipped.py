"""The results that ship with the package, which are read and never written.

A wheel holds them as an archive (``setup.py``), which is unpacked at the first read.
"""

from __future__ import annotations

import functools
import logging
import lzma
import os
import tarfile
import tempfile
from pathlib import Path

from bnrecon.runtime.digests import file_digest
from bnrecon.runtime.environment import user_cache

DEFAULT_OUTPUTS = Path("outputs")  # default of the option outputs

# A checkout has no such file: its shipped results are in outputs/.
ARCHIVE = Path(__file__).parents[1] / "shipped" / "results.tar.xz"

logger = logging.getLogger(__name__)


@functools.cache
def packaged() -> Path | None:
    """The folder of an installed package's results, in the user's cache; ``None`` in a checkout.

    It is ``None`` too, with a warning, if the archive is damaged or cannot be unpacked there.
    """
    if not ARCHIVE.is_file():
        return None
    try:
        folder = user_cache() / f"results-{file_digest(ARCHIVE)[:16]}"
        if not folder.is_dir():
            _unpack(folder)
    except (OSError, RuntimeError, tarfile.TarError, lzma.LZMAError, EOFError) as error:
        advice = "XDG_CACHE_HOME=FOLDER gives another folder for it"
        logger.warning("%s, which ships, cannot be unpacked: %s; %s", ARCHIVE, error, advice)
        return None
    return folder


def _unpack(folder: Path) -> None:
    """Create the folder of the archive's files, completely or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as partial:
        with tarfile.open(ARCHIVE, mode="r:xz") as archive:
            archive.extractall(partial, filter="data")
        try:
            os.rename(partial, folder)
        except OSError:
            if not folder.is_dir():  # made by another process
                raise


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
