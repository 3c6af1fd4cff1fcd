"""Published data sets of 32x32 colour images, in any of the layouts in which people keep them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bnrecon.data.published import Arrays, Published
from bnrecon.data.tree import list_split, read_tree, require_classes
from bnrecon.runtime.errors import UserError, first_line, shorten
from bnrecon.runtime.units import format_bytes

MAX_ARCHIVE = 10**9  # bytes, unpacked; either CIFAR has 185 MB, SVHN 305 MB
NAMES = ("train_x", "train_y", "test_x", "test_y")


class SmallImages(Published):
    """Images as torchvision's files (downloaded if need be), a tree of images or an npz archive.

    Attributes:
        count: number of classes.
        classes: their names in order; any are taken where ``None``.
        beside: the data sets that the same folder can hold.
    """

    count: int
    classes: tuple[str, ...] | None
    beside: str

    def layouts(self) -> str:
        """What the root may hold."""
        name = self.spec.name
        kinds = f"{name}.npz, {name}/{{train,test}}/<class>/* images"
        published = f"torchvision's {' and '.join(self.files)}"
        beside = f"the same folder can hold {self.beside} in the same way"
        return f"give root=FOLDER that holds {kinds}, or {published} ({beside})"

    def arrays(self) -> Arrays:
        """The data set in whichever layout the root holds it; an archive comes second."""
        root, name = self.root, self.spec.name
        archive = root / f"{name}.npz"
        if archive.is_file() and not (root / name / "train").is_dir():
            return _read_archive(archive, name, self.count, self.classes)
        return super().arrays()

    def read_folder(self, folder: Path) -> Arrays:
        """Read {train,test}/<class>/* images."""
        train = folder / "train"
        classes, _ = list_split(train, None)
        if len(classes) != self.count:
            found = f"{train} holds {len(classes)} class folders; {self.spec.name} has {self.count}"
            raise UserError(f"{found}; {self.layouts()}")
        if self.classes is not None:
            require_classes(train, classes, self.classes)
        return read_tree(folder, self.spec)


def _read_archive(path: Path, name: str, count: int, known: Sequence[str] | None) -> Arrays:
    """Read the arrays ``train_x``, ``train_y``, ``test_x`` and ``test_y``.

    ``classes``, the names of the classes, may be left out; without names they are numbers.

    Args:
        path: the archive.
        name: of the data set.
        count: number of its classes.
        known: their names in order; any are taken where ``None``.

    Raises:
        UserError: where the archive is damaged, or holds something else.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            if sum(entry.file_size for entry in archive.zip.infolist()) > MAX_ARCHIVE:
                raise ValueError(f"over {format_bytes(MAX_ARCHIVE)} unpacked")
            train_x, train_y, test_x, test_y = (archive[entry] for entry in NAMES)
            names = archive["classes"] if "classes" in archive else np.array(known or range(count))
            classes = [str(label) for label in np.atleast_1d(names.astype(str))]
    except Exception as error:  # zipfile, zlib, numpy and the system each raise their own
        what = f"is damaged or not an archive of {', '.join(NAMES)} ({first_line(error)})"
        raise UserError(f"{path} {what}; replace it") from None
    if len(classes) != count:
        found = f"has {len(classes)} classes ({shorten(classes)}), {name} has {count}"
        raise UserError(f"{path} {found}; give the right archive")
    for number, (label, expected) in enumerate(zip(classes, known or classes, strict=True)):
        if label != expected:
            found = f"class {number} is {label!r}, in {name} {expected!r}"
            raise UserError(f"{path}: {found}; rename it if it is the same class")
    for split, images, numbers in (("train", train_x, train_y), ("test", test_x, test_y)):
        _check_split(f"{path}: {split}", images, numbers, count)
    return classes, (train_x, train_y), (test_x, test_y)


def _check_split(name: str, images: np.ndarray, labels: np.ndarray, classes: int) -> None:
    """Raise ``UserError`` unless images are uint8 (N, 32, 32, 3) and labels class numbers (N,)."""
    if images.dtype != np.uint8 or images.ndim != 4:
        found = f"{images.dtype} of shape {images.shape}"
        raise UserError(f"{name}_x is {found}; it must be uint8 (N, H, W, C)")
    if images.shape[1:] != (32, 32, 3) or len(images) == 0:
        raise UserError(f"{name}_x is of shape {images.shape}; it must be (N, 32, 32, 3)")
    if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
        found = f"{labels.dtype} of shape {labels.shape}"
        raise UserError(f"{name}_y is {found}; it must be whole numbers ({len(images)},)")
    if labels.min() < 0 or labels.max() >= classes:
        found = f"runs from {labels.min()} to {labels.max()}"
        raise UserError(f"{name}_y {found}; classes are 0 to {classes - 1}")
