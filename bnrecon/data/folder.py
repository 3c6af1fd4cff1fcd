"""A user's own images in class folders, held in memory."""

from __future__ import annotations

from pathlib import Path

from bnrecon.data.in_memory import InMemoryImages, from_arrays
from bnrecon.data.spec import DataSpec
from bnrecon.data.tree import TREE, read_tree
from bnrecon.runtime.errors import UserError


def load_folder(spec: DataSpec) -> InMemoryImages:
    """Read train/<class>/* and test/<class>/* images, all resized to ``side`` if given."""
    if spec.root is None:
        raise UserError(f"name=folder needs root=FOLDER, a folder that holds {TREE}")
    return from_arrays(spec, *read_tree(Path(spec.root), spec))
