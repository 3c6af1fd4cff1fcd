"""Which images to use, and where they come from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bnrecon.runtime.environment import user_cache
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.options import check_fields, option

DATASET_NAMES = ("digits", "cifar10", "cifar100", "svhn", "folder", "imagenet", "imagenette")
RESIZABLE = ("folder", "imagenet", "imagenette")
# Keys of images in mappings, as of Hugging Face; the first one present counts.
IMAGE_KEYS = ("pixel_values", "image", "images", "img")


@dataclass
class DataSpec:
    """Which images a run works with.

    >>> DataSpec("folder", root="photos", side=32).side
    32
    >>> DataSpec("digits", side=32)
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: side=32: digits images have one size; ...
    """

    name: str = option(help="the data set: built in, or registered by imports=", file_name=True)
    root: str | None = option(None, "folder that holds the data set's files", folder=True)
    download: bool = option(True, "download what is missing (cifar10, cifar100, svhn, imagenette)")
    train_limit: int | None = option(None, "use at most this many training images", at_least=1)
    test_limit: int | None = option(None, "use at most this many test images", at_least=1)
    validation: int | None = option(
        None,
        "hold out this many training images and test on them instead of the test images",
        at_least=1,
    )
    side: int | None = option(
        None,
        "resize images to this side in pixels (folder, imagenet, imagenette)",
        at_least=1,
        at_most=4096,  # 50 MB an image
    )
    crop_padding: int = option(
        4, "random crops: zeros around a training image, in pixels", at_least=0
    )
    flip: bool = option(True, "mirror training images at random")
    workers: int = option(4, "processes or threads that read image files", at_least=0)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.side is not None and self.name not in RESIZABLE:
            raise UserError(
                f"side={self.side}: {self.name} images have one size; "
                f"leave it out, it is for {', '.join(RESIZABLE)}"
            )
        if self.name == "imagenet" and (self.crop_padding, self.flip) != (4, True):
            raise UserError(
                f"crop_padding={self.crop_padding}, flip={self.flip}: imagenet's training images "
                "are always resized crops, mirrored at random; leave both out"
            )
        cores = os.cpu_count() or 1
        if self.workers > (most := max(32, 4 * cores)):
            raise UserError(f"workers={self.workers}: at most {most} on {cores} cores")


def has_pixels_of_the_user(name: str) -> bool:
    """Whether a data set's name does not determine its images."""
    return name in ("folder", "imagenet") or name not in DATASET_NAMES


def default_root() -> Path:
    """The folder for downloads: ``$BNRECON_DATA``, or a folder in the user's cache.

    Raises:
        UserError: neither exists, as the user has no home folder.
    """
    if folder := os.environ.get("BNRECON_DATA"):
        return Path(os.path.expanduser(folder))
    try:
        return user_cache() / "data"
    except RuntimeError:
        advice = "give root=FOLDER, or set BNRECON_DATA"
        raise UserError(f"you have no home folder for data sets; {advice}") from None
