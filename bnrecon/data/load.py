"""From a data set's name and folder to its images, every way this can go wrong said in one line."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bnrecon.data.in_memory import InMemoryImages
from bnrecon.data.streaming import StreamedImages, read_image
from bnrecon.errors import UserError, nearest
from bnrecon.store import exclusive

__all__ = ["DATASETS", "DataSpec", "load"]

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@dataclass(frozen=True)
class DataSpec:
    """What to load. ``root`` is the folder the files are in, ``side`` what larger images are resized to."""

    name: str
    root: str | None = None
    download: bool = True
    train_limit: int | None = None
    test_limit: int | None = None
    side: int | None = None
    crop_padding: int = 4
    flip: bool = True
    workers: int = 4


def load(spec: DataSpec) -> InMemoryImages | StreamedImages:
    """Load a data set by its name in ``DATASETS``.

    Raises ``UserError`` naming what is missing or damaged, where, and what to do.

    >>> load(DataSpec("digits")).sizes
    (1437, 360)
    """
    if spec.name not in DATASETS:
        raise UserError(f"data.name={spec.name}: {nearest(spec.name, DATASETS)}")
    if spec.root is not None and not Path(spec.root).expanduser().is_dir():
        raise UserError(f"data.root={spec.root}: no such folder; give the folder that holds the {spec.name} files")
    if spec.side is not None and spec.name not in ("folder", "imagenet"):
        raise UserError(
            f"data.side={spec.side}: {spec.name} images have one size; data.side is for data=folder and data=imagenet"
        )
    return DATASETS[spec.name](spec)


def _in_memory(spec: DataSpec, classes, train_x, train_y, test_x, test_y) -> InMemoryImages:
    train = _in_canonical_order(train_x, train_y, spec.train_limit)
    test = _in_canonical_order(test_x, test_y, spec.test_limit)
    return InMemoryImages(spec.name, tuple(classes), *train, *test, spec.crop_padding, spec.flip)


def _in_canonical_order(images: np.ndarray, labels: np.ndarray, limit: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Order images by a digest of their pixels: the same data give the same run, whichever way its files are laid out.

    The order is as good as random, so that any leading part is a sample of all classes.
    """
    images = np.ascontiguousarray(images)
    digests = [hashlib.blake2b(image, digest_size=16).digest() for image in images]
    order = np.array(sorted(range(len(images)), key=digests.__getitem__))[:limit]
    return torch.from_numpy(images[order]), torch.from_numpy(np.asarray(labels)[order]).long()


def _digits(spec: DataSpec) -> InMemoryImages:
    """scikit-learn's 1,797 handwritten digits, 8x8, 17 grey levels; 360 of them, the same ones always, are test images."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    pixels = np.round(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    train_x, test_x, train_y, test_y = train_test_split(pixels, labels, test_size=360, random_state=0, stratify=labels)
    return _in_memory(spec, map(str, range(10)), train_x, train_y, test_x, test_y)


def default_root() -> Path:
    """Where data sets are downloaded to: ``$BNRECON_DATA``, or a folder in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("BNRECON_DATA") or Path(cache) / "bnrecon" / "data")


def _cifar(spec: DataSpec) -> InMemoryImages:
    """CIFAR-10 or CIFAR-100 from torchvision's files (downloaded if need be), a class-folder tree or an npz archive."""
    root = Path(spec.root).expanduser() if spec.root else default_root()
    for folder in (root, root / spec.name):
        if (folder / "train").is_dir() and (folder / "test").is_dir():
            expected = CIFAR10_CLASSES if spec.name == "cifar10" else 100
            return _in_memory(spec, *_read_tree(folder, spec, expected))
    if (root / f"{spec.name}.npz").is_file():
        return _read_archive(root / f"{spec.name}.npz", spec)
    return _torchvision_cifar(root, spec)


def _torchvision_cifar(root: Path, spec: DataSpec) -> InMemoryImages:
    from torchvision import datasets

    kind = datasets.CIFAR10 if spec.name == "cifar10" else datasets.CIFAR100
    advice = (
        f"give data.root=FOLDER with torchvision's files, or with train/<class>/* and test/<class>/* images, or {spec.name}.npz"
    )
    wanted = f"{kind.base_folder} with the published checksums"
    try:
        try:
            train, test = kind(root, train=True), kind(root, train=False)
        except RuntimeError:
            if not spec.download:
                raise
            # Only now is anything written: files that are at hand may lie in a folder that is not ours to write to.
            with exclusive(root, f"downloading {spec.name} to {root}"):
                train, test = kind(root, train=True, download=True), kind(root, train=False)
    except OSError as error:  # urllib's errors are OSErrors: no network, a refused name, a full disk
        raise UserError(f"{spec.name} is not in {root} and could not be downloaded ({error}); {advice}") from None
    except (RuntimeError, EOFError) as error:
        # torchvision verifies every file's published checksum before it reads one: what is damaged is never unpickled.
        reason = "missing or damaged" if (root / kind.base_folder).exists() else "missing"
        hint = "" if spec.download else ", or allow data.download=true"
        raise UserError(f"{spec.name} in {root}: {wanted} is {reason} ({_first_line(error)}); {advice}{hint}") from None
    return _in_memory(spec, train.classes, train.data, np.array(train.targets), test.data, np.array(test.targets))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [error.__class__.__name__])[0].rstrip(".")


def _read_archive(path: Path, spec: DataSpec) -> InMemoryImages:
    names = ("classes", "train_x", "train_y", "test_x", "test_y")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = [archive[name] for name in names]
    except Exception as error:  # zipfile, zlib, numpy and the system each raise their own
        raise UserError(f"{path} is damaged or not an archive of {', '.join(names)} ({_first_line(error)}); replace it") from None
    for name, array in zip(names[1::2], arrays[1::2], strict=True):
        if array.dtype != np.uint8 or array.ndim != 4:
            raise UserError(f"{path}: {name} is {array.dtype} of shape {array.shape}; it must be uint8 (N, H, W, C)")
    classes = [str(name) for name in np.atleast_1d(arrays[0])]
    expected = CIFAR10_CLASSES if spec.name == "cifar10" else None
    if (expected and tuple(classes) != expected) or (expected is None and len(classes) != 100):
        raise UserError(f"{path}: its {len(classes)} classes are not those of {spec.name}; give the right archive")
    for split, images, labels in (("train", *arrays[1:3]), ("test", *arrays[3:])):
        if images.shape[1:] != (32, 32, 3) or len(images) == 0:
            raise UserError(f"{path}: {split}_x is of shape {images.shape}; it must be (N, 32, 32, 3)")
        if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
            raise UserError(
                f"{path}: {split}_y is {labels.dtype} of shape {labels.shape}; it must be whole numbers ({len(images)},)"
            )
        if labels.min() < 0 or labels.max() >= len(classes):
            raise UserError(f"{path}: {split}_y runs from {labels.min()} to {labels.max()}; classes are 0 to {len(classes) - 1}")
    return _in_memory(spec, classes, *arrays[1:])


def _folder(spec: DataSpec) -> InMemoryImages:
    """Any tree of train/<class>/* and test/<class>/* images; of one size, or resized to ``side``."""
    if spec.root is None:
        raise UserError("data=folder needs data.root=FOLDER, a folder that holds train/<class>/* and test/<class>/* images")
    return _in_memory(spec, *_read_tree(Path(spec.root).expanduser(), spec, None))


def _imagenet(spec: DataSpec) -> StreamedImages:
    """ImageNet's image folders, train/<class>/* and val/<class>/* (or test/<class>/*)."""
    if spec.root is None:
        raise UserError("data=imagenet needs data.root=FOLDER, a folder that holds train/<class>/* and val/<class>/* images")
    root = Path(spec.root).expanduser()
    held_out = root / "val" if (root / "val").is_dir() else root / "test"
    classes, train = _list_split(root / "train", None, spec.train_limit)
    _, test = _list_split(held_out, classes, spec.test_limit)
    return StreamedImages(spec.name, tuple(classes), train, test, spec.side or 224, spec.workers)


def _list_split(folder: Path, expected: list[str] | None, limit: int | None = None) -> tuple[list[str], list[tuple[Path, int]]]:
    """List a split's images with their class numbers; the classes must be the expected ones and none may be empty.

    With a limit, images are taken from the classes in turn, so that a few still show all classes.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is missing; data.root must hold train/<class>/* and test/<class>/* images")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if expected is not None and classes != list(expected):
        missing, extra = sorted(set(expected) - set(classes)), sorted(set(classes) - set(expected))
        found = "; ".join(
            f"{word} {', '.join(names[:5])}" for word, names in (("missing", missing), ("not known", extra)) if names
        )
        raise UserError(f"{folder}: the class folders are not the expected {len(expected)} ({found})")
    if not classes:
        raise UserError(f"{folder} holds no class folders; it must hold <class>/* images")
    columns = []
    for label, name in enumerate(classes):
        files = sorted(f for f in (folder / name).iterdir() if f.suffix.lower() in IMAGE_SUFFIXES)
        if not files:
            raise UserError(
                f"{folder / name} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}); add some or remove the class"
            )
        columns.append([(file, label) for file in files])
    if limit is None:
        return classes, [item for column in columns for item in column]
    depth = max(len(column) for column in columns)
    return classes, [column[i] for i in range(depth) for column in columns if i < len(column)][:limit]


def _read_tree(folder: Path, spec: DataSpec, expected: tuple[str, ...] | int | None):
    """Read a whole tree into arrays: classes, train_x, train_y, test_x, test_y."""
    known = list(expected) if isinstance(expected, tuple) else None
    classes, train = _list_split(folder / "train", known)
    if isinstance(expected, int) and len(classes) != expected:
        raise UserError(f"{folder / 'train'} holds {len(classes)} class folders; {spec.name} has {expected}")
    _, test = _list_split(folder / "test", classes)
    arrays: list = [classes]
    for files in (train, test):
        arrays += [_read_images([path for path, _ in files], spec), np.array([label for _, label in files])]
    if arrays[1].shape[1:] != arrays[3].shape[1:]:
        raise UserError(
            f"{folder}: training images are {_size(arrays[1][0])}, test images {_size(arrays[3][0])}; give data.side=32, say"
        )
    return arrays


def _read_images(paths: list[Path], spec: DataSpec) -> np.ndarray:
    def read(path: Path) -> np.ndarray:
        picture = read_image(path)
        if spec.side is not None and picture.size != (spec.side, spec.side):
            picture = picture.resize((spec.side, spec.side))
        return np.asarray(picture)

    with ThreadPoolExecutor(max(2, spec.workers)) as pool:
        images = list(pool.map(read, paths))
    for path, image in zip(paths, images, strict=True):
        if image.shape != images[0].shape:
            raise UserError(
                f"{path} is {_size(image)}, {paths[0].name} is {_size(images[0])}; give data.side=32, say, to resize all"
            )
    return np.stack(images)


def _size(image: np.ndarray) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"


DATASETS: dict[str, Callable[[DataSpec], InMemoryImages | StreamedImages]] = {
    "digits": _digits, "cifar10": _cifar, "cifar100": _cifar, "folder": _folder, "imagenet": _imagenet,
}  # fmt: skip
