"""ImageNet's image folders, streamed from the disk."""

from __future__ import annotations

from pathlib import Path

from bnrecon.data.in_memory import require_two_images
from bnrecon.data.spec import DataSpec
from bnrecon.data.streaming import StreamedImages
from bnrecon.data.tree import held_out_split, list_split
from bnrecon.runtime.errors import UserError


def load_imagenet(spec: DataSpec) -> StreamedImages:
    """List train/<class>/* and val/<class>/* (or test/<class>/*); images are read when used."""
    if spec.root is None:
        raise UserError(
            "name=imagenet needs root=FOLDER, a folder that holds train/<class>/* and "
            "val/<class>/* images"
        )
    root = Path(spec.root)
    classes, train = list_split(root / "train", None, spec.train_limit)
    _, test = list_split(root / held_out_split(root), classes, spec.test_limit)
    if spec.train_limit != 1:
        require_two_images(len(train), spec)
    return StreamedImages(spec.name, tuple(classes), train, test, spec.side or 224, spec.workers)
