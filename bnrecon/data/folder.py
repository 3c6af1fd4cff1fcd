"""A user's own images in class folders or in one archive, held in memory."""

from __future__ import annotations

from pathlib import Path

from bnrecon.data.archive import read_archive
from bnrecon.data.in_memory import InMemoryImages, from_arrays
from bnrecon.data.spec import DataSpec
from bnrecon.data.tree import TREE, read_tree
from bnrecon.runtime.errors import UserError

ARCHIVE = "images.npz"


def load_folder(spec: DataSpec) -> InMemoryImages:
    """Read train/<class>/* and test/<class>/* images, all resized to ``side``, or images.npz."""
    if spec.root is None:
        held = f"{TREE}, or {ARCHIVE}"
        raise UserError(f"name=folder needs root=FOLDER, a folder that holds {held}")
    if (archive := Path(spec.root) / ARCHIVE).is_file():
        if spec.side is not None:
            raise UserError(f"side={spec.side}: {archive} is not resized; leave it out")
        return from_arrays(spec, *read_archive(archive, spec.name))
    return from_arrays(spec, *read_tree(Path(spec.root), spec))
