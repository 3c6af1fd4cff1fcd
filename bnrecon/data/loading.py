"""From a spec to its images, with one-line errors."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from bnrecon.data.archive import read_archive
from bnrecon.data.imagenette import load_imagenette
from bnrecon.data.in_memory import InMemoryImages, from_arrays, require_two_images
from bnrecon.data.small_images import load_cifar10, load_cifar100, load_svhn
from bnrecon.data.spec import DataSpec
from bnrecon.data.streaming import StreamedImages
from bnrecon.data.tree import TREE, held_out_split, list_split, read_tree
from bnrecon.runtime.errors import UserError, printable
from bnrecon.runtime.user_code import unregistered

Images = InMemoryImages | StreamedImages
ARCHIVE = "images.npz"  # of a user's images


def load_digits(spec: DataSpec) -> InMemoryImages:
    """scikit-learn's 1,797 digits, 8x8, 17 grey levels; a fixed 360 of them are test images."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    images, labels = datasets.load_digits(return_X_y=True)
    pixels = np.round(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, labels, test_size=360, random_state=0, stratify=labels
    )
    classes = tuple(map(str, range(10)))
    return from_arrays(spec, classes, (train_x, train_y), (test_x, test_y))


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


def load_imagenet(spec: DataSpec) -> StreamedImages:
    """List train/<class>/* and val/<class>/* (or test/<class>/*); images are read when used."""
    if spec.root is None:
        held = "train/<class>/* and val/<class>/* images"
        raise UserError(f"name=imagenet needs root=FOLDER, a folder that holds {held}")
    root = Path(spec.root)
    classes, train = list_split(root / "train", None, spec.train_limit)
    _, test = list_split(root / held_out_split(root), classes, spec.test_limit)
    if spec.train_limit != 1:
        require_two_images(len(train), spec)
    return StreamedImages(spec.name, tuple(classes), train, test, spec.side or 224, spec.workers)


# Named as in ``bnrecon.data.spec.DATASET_NAMES``; a user's data sets are added.
DATASETS: dict[str, Callable[[DataSpec], Images]] = {
    "digits": load_digits,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "svhn": load_svhn,
    "folder": load_folder,
    "imagenet": load_imagenet,
    "imagenette": load_imagenette,
}


def load(spec: DataSpec) -> Images:
    """Load a data set by its name in ``DATASETS``.

    Raises:
        UserError: a file or folder is missing or damaged, or a field does not fit the images; the
            message names it and what to do.

    >>> load(DataSpec("digits")).sizes
    (1437, 360)
    """
    try:
        if spec.root is not None:
            spec = dataclasses.replace(spec, root=_existing_root(spec.root, spec.name))
        if spec.name not in DATASETS:
            raise unregistered("name", spec.name, DATASETS)
        images = DATASETS[spec.name](spec)
        if spec.validation is not None:
            train = images.sizes[0]
            if train - spec.validation < 2:
                remaining = f"two or more of the {train:,} training images must remain"
                raise UserError(f"validation={spec.validation}: {remaining}; hold out fewer")
            images = images.hold_out(spec.validation, spec.test_limit)
        return images
    except UserError as error:
        raise UserError(printable(str(error))) from None
    except OSError as error:
        what = error.filename or spec.root or spec.name
        raise UserError(printable(f"{what} cannot be read ({error.strerror or error})")) from None


def _existing_root(path: str, name: str) -> str:
    """The folder with ``~`` expanded; raise ``UserError`` if there is no such folder."""
    root = os.path.expanduser(path)
    if not os.path.isdir(root):
        held = f"{TREE}, or {ARCHIVE}" if name == "folder" else f"the {name} files"
        advice = f"give the folder that holds {held}"
        raise UserError(f"root={root[:200]}: no such folder, or it cannot be entered; {advice}")
    return root


def refuse_unused_root(spec: DataSpec) -> None:
    """Raise ``UserError`` if a folder is given for a data set without files.

    Otherwise a run would silently train on the digits instead of the user's images. ``load`` does
    not check this, as a study passes one ``root`` to all its runs.

    >>> refuse_unused_root(DataSpec("digits", root="mine"))
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: root=mine: digits has no files; ... name=folder ...
    """
    if spec.name == "digits" and spec.root is not None:
        option = f"root={printable(spec.root)}"
        raise UserError(
            f"{option}: digits has no files; for your own images give name=folder and {option}"
        )
