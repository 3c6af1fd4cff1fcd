"""Imagenette: ten classes of ImageNet that are easy to tell apart, held in memory."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import tempfile
from pathlib import Path

from PIL import Image, ImageOps

from bnrecon.data.image_file import IMAGE_SUFFIXES
from bnrecon.data.published import Arrays, Published
from bnrecon.data.spec import DataSpec
from bnrecon.data.tree import held_out_split, list_split, read_tree
from bnrecon.runtime.errors import UserError

logger = logging.getLogger(__name__)

CLASSES = {
    "n01440764": "tench",
    "n02102040": "English springer",
    "n02979186": "cassette player",
    "n03000684": "chain saw",
    "n03028079": "church",
    "n03394916": "French horn",
    "n03417042": "garbage truck",
    "n03425413": "gas pump",
    "n03445777": "golf ball",
    "n03888257": "parachute",
}
IMAGES = {"train": 9469, "val": 3925}
# torchvision's sizes: the images' shorter side, and the archive's folder.
SIZES = {"160px": (160, "imagenette2-160"), "320px": (320, "imagenette2-320")}
FULL = ("full", "imagenette2")
SIDE = 128  # 658 MB in all


class _Imagenette(Published):
    """Imagenette, in the smallest published size that need not be enlarged, or a larger one."""

    url = "https://github.com/fastai/imagenette"

    def __init__(self, spec: DataSpec):
        resized = spec.side or SIDE
        super().__init__(dataclasses.replace(spec, side=resized))
        large_enough = [(size, folder) for size, (side, folder) in SIZES.items() if side >= resized]
        sizes = [*large_enough, FULL]
        self.size = sizes[0][0]
        self.files = tuple(folder for _, folder in sizes)

    def layouts(self) -> str:
        published = f"torchvision's {' or '.join(self.files)}"
        return f"give root=FOLDER that holds imagenette/{{train,val}}/<wnid>/*, or {published}"

    def read(self, download: bool = False) -> Arrays:
        if download:
            self._download()
        if not (folders := self.published()):
            raise RuntimeError(f"none of {', '.join(self.files)}")
        if folders[0].name != self.files[0]:
            logger.info("imagenette is read from %s; there is no %s", folders[0], self.files[0])
        self._require_complete(folders[0])
        return self.read_folder(folders[0])

    def _download(self) -> None:
        """Unpack to a temporary folder and rename it, so that an existing folder is complete."""
        from torchvision import datasets

        self.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.root, prefix=".imagenette-") as partial:
            datasets.Imagenette(partial, size=self.size, download=True)
            os.rename(Path(partial) / self.files[0], self.root / self.files[0])

    def _require_complete(self, folder: Path) -> None:
        for split, count in IMAGES.items():
            files = (folder / split).glob("[!.]*/[!.]*")
            held = sum(file.suffix.lower() in IMAGE_SUFFIXES for file in files)
            if held != count:
                fault = f"{folder / split} holds {held:,} of {count:,} images"
                advice = f"remove {folder.name} and allow download=true, or unpack it again"
                raise UserError(f"{fault}; {advice}")

    def read_folder(self, folder: Path) -> Arrays:
        list_split(folder / "train", list(CLASSES))  # raises UserError for other classes
        split = held_out_split(folder)
        crop = functools.partial(ImageOps.fit, method=Image.Resampling.BILINEAR)
        _, train, test = read_tree(folder, self.spec, split, crop)
        return list(CLASSES.values()), train, test


load_imagenette = _Imagenette.load
