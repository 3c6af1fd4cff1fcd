"""Image trees, <split>/<class>/*: list them with class numbers, or read them into arrays."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from bnrecon.data.image_file import IMAGE_SUFFIXES, read_image
from bnrecon.data.spec import DataSpec
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.hardware import available_memory
from bnrecon.runtime.units import format_bytes

logger = logging.getLogger(__name__)

TREE = "train/<class>/* and test/<class>/* images"
Resize = Callable[[Image.Image, tuple[int, int]], Image.Image]
Split = tuple[np.ndarray, np.ndarray]  # uint8 images (N, H, W, C) and class numbers (N,)


def list_split(
    folder: Path, expected: Sequence[str] | None, limit: int | None = None
) -> tuple[list[str], list[tuple[Path, int]]]:
    """List a split: the sorted names of its classes, and each image's path and class number.

    The split holds a folder for each of the ``expected`` classes; ``None`` allows any classes. At
    most ``limit`` images are listed, from the classes in turn, so that a few cover all classes.

    Raises:
        UserError: the classes are not the expected ones, or one is empty.
    """
    if not folder.is_dir():
        tested = "test" if folder.name == "train" else folder.name
        raise UserError(
            f"{folder} is missing; root=FOLDER must hold train/<class>/* and "
            f"{tested}/<class>/* images"
        )
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
    classes = [entry.name for entry in entries if entry.is_dir()]
    if dead := [entry for entry in entries if not entry.exists()]:
        raise UserError(f"{dead[0]}: this link leads nowhere; repair or remove it")
    if expected is not None:
        require_classes(folder, classes, expected)
    if not classes:
        raise UserError(f"{folder} holds no class folders; it must hold <class>/* images")
    listed = [_images(folder / name) for name in classes]
    columns = [[(path, i) for path in images] for i, (images, _) in enumerate(listed)]
    loose = [path for path in entries if path.suffix.lower() in IMAGE_SUFFIXES]
    loose = [path for path in loose if not path.is_dir()]
    others = [path for _, rest in listed for path in rest]
    skipped = (("images outside class folders", loose), ("files without an image suffix", others))
    for what, paths in skipped:
        if paths:
            first = paths[0].relative_to(folder)
            logger.warning("%s: %s are skipped: %d, such as %s", folder, what, len(paths), first)
    if limit is None:
        return classes, [item for column in columns for item in column]
    depth = max(len(column) for column in columns)
    in_turn = [column[i] for i in range(depth) for column in columns if i < len(column)]
    return classes, in_turn[:limit]


def require_classes(folder: Path, classes: Sequence[str], expected: Sequence[str]) -> None:
    """Raise ``UserError`` if the class folders are not the expected ones."""
    if list(classes) == list(expected):
        return
    missing, extra = sorted(set(expected) - set(classes)), sorted(set(classes) - set(expected))
    named = (("missing", missing), ("not known", extra))
    difference = "; ".join(f"{word} {', '.join(names[:5])}" for word, names in named if names)
    raise UserError(
        f"{folder}: the class folders are not the expected {len(expected)} ({difference})"
    )


def held_out_split(folder: Path) -> str:
    """The split to test on: ``val``, as in ImageNet, or ``test`` if only that exists."""
    return "test" if (folder / "test").is_dir() and not (folder / "val").is_dir() else "val"


def read_tree(
    folder: Path, spec: DataSpec, test_split: str = "test", resize: Resize = Image.Image.resize
) -> tuple[list[str], Split, Split]:
    """Read the whole tree: the names of the classes, the training split, the test split.

    Images are made square by ``resize`` if the spec has a side.
    """
    classes, train = list_split(folder / "train", None)
    _, test = list_split(folder / test_split, classes)
    train_x, test_x = (
        _read_images([path for path, _ in split], spec, resize) for split in (train, test)
    )
    train_y, test_y = (np.array([label for _, label in split]) for split in (train, test))
    if train_x.shape[1:] != test_x.shape[1:]:
        sizes = f"training images are {size_text(train_x[0])}, test images {size_text(test_x[0])}"
        raise UserError(f"{folder}: {sizes}; resize all, as in side=32")
    return classes, (train_x, train_y), (test_x, test_y)


def size_text(image: np.ndarray) -> str:
    """Width and height of an image (H, W, C), as in 32x32."""
    return f"{image.shape[1]}x{image.shape[0]}"


def _images(folder: Path) -> tuple[list[Path], list[Path]]:
    """A class folder's images (regular files and links to them), and its other files, by name."""
    images, others = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            path = folder / entry.name
            if entry.name.startswith("."):
                continue
            if path.suffix.lower() not in IMAGE_SUFFIXES:
                others.append(path)
                continue
            # Only links need another look at the disk: ImageNet has a million files.
            if not (entry.is_file(follow_symlinks=False) or path.is_file()):
                raise UserError(f"{path} is neither a regular file nor a link to one; remove it")
            images.append(path)
    if not images:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise UserError(f"{folder} holds no images ({suffixes}); add some or remove the class")
    return sorted(images), sorted(others)


def _read_images(paths: list[Path], spec: DataSpec, resize: Resize) -> np.ndarray:
    """Read images into one array (N, H, W, 3), several at a time."""

    def read(path: Path) -> np.ndarray:
        picture = read_image(path)
        if spec.side is not None and picture.size != (square := (spec.side, spec.side)):
            picture = resize(picture, square)
        return np.asarray(picture)

    first = read(paths[0])
    needed = 2 * len(paths) * first.nbytes  # twice: they are sorted afterwards
    require_memory(
        f"{paths[0].parents[1]}: {len(paths):,} images of {size_text(first)}",
        needed,
        f"give a smaller side, as in side={max(1, min(first.shape[:2]) // 2)}",
    )
    images = np.empty((len(paths), *first.shape), np.uint8)

    def fill(number: int) -> None:
        image = read(paths[number])
        if image.shape != first.shape:
            fault = f"{paths[number]} is {size_text(image)}, {paths[0].name} is {size_text(first)}"
            raise UserError(f"{fault}; resize all, as in side=32")
        images[number] = image

    with ThreadPoolExecutor(max(1, spec.workers)) as pool:
        list(pool.map(fill, range(len(paths))))  # raises an image's error
    return images


def require_memory(what: str, needed: int, advice: str) -> None:
    """Raise ``UserError`` if reading ``what`` needs more bytes than are free."""
    if needed > (free := available_memory(torch.device("cpu"))):
        sizes = f"take {format_bytes(needed)} to read and {format_bytes(free)} are free"
        raise UserError(f"{what} {sizes}; {advice}")
