"""Images and class numbers in an npz archive, and checks of a user's arrays."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bnrecon.data.tree import Split, require_memory
from bnrecon.runtime.errors import UserError, first_line, shorten
from bnrecon.runtime.units import format_bytes

logger = logging.getLogger(__name__)

MOST_CLASSES = 100_000  # ImageNet-21k has 21,841
NAMES = ("train_x", "train_y", "test_x", "test_y")


def read_archive(
    path: Path,
    name: str,
    count: int | None = None,
    class_names: Sequence[str] | None = None,
    shape: tuple[int, int, int] | None = None,
) -> tuple[list[str], Split, Split]:
    """Read the arrays ``train_x``, ``train_y``, ``test_x`` and ``test_y``.

    Images are uint8 (N, H, W, C), class numbers whole numbers (N,) from 0. ``classes``, the names
    of the classes, is optional; without it the numbers are the names. ``None`` allows any ``count``
    of classes, any ``class_names`` in order, and any ``shape`` (H, W, C) of the images.

    Raises:
        UserError: the archive is damaged, or has other content.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            size = sum(entry.file_size for entry in archive.zip.infolist())
            what = f"{path}: {format_bytes(size)} unpacked"
            require_memory(what, 2 * size, "give fewer or smaller images")  # twice: to be sorted
            train_x, train_y, test_x, test_y = (archive[entry] for entry in NAMES)
            numbers = range(count or count_classes(str(path), train_y, test_y))
            names = archive["classes"] if "classes" in archive else np.array(class_names or numbers)
            classes = [str(label) for label in np.atleast_1d(names.astype(str))]
    except UserError:
        raise
    except Exception as error:  # zipfile, zlib, numpy and the system raise different errors
        what = f"is damaged or not an archive of {', '.join(NAMES)} ({first_line(error)})"
        raise UserError(f"{path} {what}; replace it") from None
    if len(classes) != (count or len(classes)):
        fault = f"has {len(classes)} classes ({shorten(classes)}), {name} has {count}"
        raise UserError(f"{path} {fault}; give the right archive")
    for number, (label, expected) in enumerate(zip(classes, class_names or classes, strict=True)):
        if label != expected:
            fault = f"class {number} is {label!r}, in {name} {expected!r}"
            raise UserError(f"{path}: {fault}; rename it if it is the same class")
    shape = shape or train_x.shape[1:]
    for split, images, labels in (("train", train_x, train_y), ("test", test_x, test_y)):
        check_split(f"{path}: {split}", images, labels, len(classes), shape)
    warn_of_empty_classes(f"{path}: train", train_y, len(classes))
    return classes, (train_x, train_y), (test_x, test_y)


def count_classes(name: str, *labels: np.ndarray) -> int:
    """One more than the largest class number; 1 if there is none.

    Raises ``UserError`` for more than ``MOST_CLASSES``, as if -1 was stored without its sign.
    """
    largest = max(int(each.max(initial=0)) if each.dtype.kind in "iu" else 0 for each in labels)
    if largest >= MOST_CLASSES:
        fault = f"a class has the number {largest}; at most {MOST_CLASSES - 1:,} are read"
        raise UserError(f"{name}: {fault}: number the classes from 0, without gaps")
    return 1 + largest


def check_split(
    name: str, images: np.ndarray, labels: np.ndarray, classes: int, shape: tuple[int, ...]
) -> None:
    """Raise ``UserError`` unless images are uint8 (N, *shape) and labels class numbers (N,)."""
    if images.dtype != np.uint8 or images.ndim != 4:
        actual = f"{images.dtype} of shape {images.shape}"
        raise UserError(f"{name}_x is {actual}; it must be uint8 (N, H, W, C)")
    if images.shape[3] > 4 and not {1, 3}.isdisjoint(images.shape[1:3]):
        raise UserError(
            f"{name}_x is of shape {images.shape}; it must be (N, H, W, C), and this looks like "
            "(N, C, H, W): transpose it"
        )
    if 0 in images.shape:
        raise UserError(f"{name}_x is of shape {images.shape}; it must have an image and pixels")
    if images.shape[1:] != tuple(shape):
        allowed = ", ".join(map(str, shape))
        raise UserError(f"{name}_x is of shape {images.shape}; it must be (N, {allowed})")
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        actual = f"{labels.dtype} of shape {labels.shape}"
        raise UserError(f"{name}_y is {actual}; it must be whole numbers ({len(images)},)")
    if labels.min() < 0 or labels.max() >= classes:
        actual = f"runs from {labels.min()} to {labels.max()}"
        raise UserError(f"{name}_y {actual}; classes are 0 to {classes - 1}")


def warn_of_empty_classes(name: str, labels: np.ndarray, classes: int) -> None:
    """Warn of classes without a training image, as if labels count from 1."""
    if empty := sorted(set(range(classes)) - set(labels.tolist())):
        which = f"class {empty[0]} has" if len(empty) == 1 else f"{len(empty)} classes have"
        logger.warning("%s_y: %s no image; class numbers start at 0", name, which)
