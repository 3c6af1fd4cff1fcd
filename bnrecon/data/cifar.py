"""CIFAR-10 and CIFAR-100, in any of the layouts in which people keep them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bnrecon.data.in_memory import InMemoryImages, from_arrays
from bnrecon.data.spec import DataSpec, default_root
from bnrecon.data.tree import list_split, read_tree, require_classes
from bnrecon.runtime.errors import Interrupted, RunError, UserError
from bnrecon.runtime.hardware import format_bytes
from bnrecon.runtime.locks import lock_folder

__all__ = ["CIFAR10_CLASSES", "load_cifar"]

CIFAR10_CLASSES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
MAX_ARCHIVE = 10**9  # bytes, unpacked; either CIFAR has 185 MB
ARRAYS = ("train_x", "train_y", "test_x", "test_y")


def load_cifar(spec: DataSpec) -> InMemoryImages:
    """Read torchvision's files (downloaded if need be), a tree of images or an npz archive.

    What is named after the data set comes first, so that one folder can hold both; a tree without
    a name comes last.
    """
    root = Path(spec.root) if spec.root else default_root()
    if (root / spec.name / "train").is_dir():
        return _read_tree(root / spec.name, spec)
    if (root / f"{spec.name}.npz").is_file():
        return _read_archive(root / f"{spec.name}.npz", spec)
    if not (root / _torchvision_class(spec).base_folder).is_dir() and (root / "train").is_dir():
        return _read_tree(root, spec)
    return _read_torchvision(root, spec)


def _torchvision_class(spec: DataSpec) -> Any:
    from torchvision import datasets

    return datasets.CIFAR10 if spec.name == "cifar10" else datasets.CIFAR100


def _layouts(spec: DataSpec) -> str:
    other = "cifar100" if spec.name == "cifar10" else "cifar10"
    kinds = f"{spec.name}.npz, {spec.name}/{{train,test}}/<class>/* images"
    published = f"torchvision's {_torchvision_class(spec).base_folder}"
    beside = f"the same folder can hold {other} in the same way"
    return f"give root=FOLDER that holds {kinds}, or {published} ({beside})"


def _read_tree(folder: Path, spec: DataSpec) -> InMemoryImages:
    train = folder / "train"
    classes, _ = list_split(train, None)
    wanted = 10 if spec.name == "cifar10" else 100
    if len(classes) != wanted:
        found = f"{train} holds {len(classes)} class folders; {spec.name} has {wanted}"
        raise UserError(f"{found}; {_layouts(spec)}")
    if spec.name == "cifar10":
        require_classes(train, classes, CIFAR10_CLASSES)
    return from_arrays(spec, *read_tree(folder, spec))


def _read_torchvision(root: Path, spec: DataSpec) -> InMemoryImages:
    """Read torchvision's files; download what is missing or damaged, if that is allowed.

    torchvision verifies each file's published checksum first: what is damaged is never unpickled.
    """
    from torchvision.datasets.utils import download_and_extract_archive

    kind = _torchvision_class(spec)
    folder = root / kind.base_folder
    state = f"{spec.name} is not in {root}"
    if folder.exists():
        state = f"{spec.name}: {folder} is not complete, or damaged (by its files' checksums)"

    def both() -> tuple[Any, Any]:
        return kind(root, train=True), kind(root, train=False)

    try:
        train, test = both()
    except RuntimeError:
        if not spec.download:
            raise UserError(f"{state}; {_layouts(spec)}, or allow download=true") from None
        # Nothing is written before: files that are there may lie in a folder that is not ours.
        try:
            with lock_folder(root, f"downloading {spec.name} to {root}"):
                try:
                    train, test = both()  # another process has downloaded it
                except RuntimeError:
                    download_and_extract_archive(kind.url, root, None, kind.filename, kind.tgz_md5)
                    train, test = both()
        except (UserError, RunError, Interrupted):
            raise
        except Exception as error:  # of urllib, http, tarfile, zlib, torchvision, the system
            reason = f"could not be downloaded from {kind.url} ({_first_line(error)})"
            raise UserError(f"{state} and {reason}; {_layouts(spec)}") from None
    splits = ((split.data, np.array(split.targets)) for split in (train, test))
    return from_arrays(spec, train.classes, *splits)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [error.__class__.__name__])[0].rstrip(".")[:200]


def _read_archive(path: Path, spec: DataSpec) -> InMemoryImages:
    names = ("classes", *ARRAYS)
    try:
        with np.load(path, allow_pickle=False) as archive:
            if sum(entry.file_size for entry in archive.zip.infolist()) > MAX_ARCHIVE:
                raise ValueError(f"over {format_bytes(MAX_ARCHIVE)} unpacked")
            labels, train_x, train_y, test_x, test_y = (archive[name] for name in names)
    except Exception as error:  # zipfile, zlib, numpy and the system each raise their own
        what = f"is damaged or not an archive of {', '.join(names)} ({_first_line(error)})"
        raise UserError(f"{path} {what}; replace it") from None
    classes = [str(name) for name in np.atleast_1d(labels)]
    _check_archive_classes(path, classes, spec)
    for split, images, labels in (("train", train_x, train_y), ("test", test_x, test_y)):
        _check_archive_split(f"{path}: {split}", images, labels, len(classes))
    return from_arrays(spec, classes, (train_x, train_y), (test_x, test_y))


def _check_archive_classes(path: Path, classes: list[str], spec: DataSpec) -> None:
    known = tuple(classes) == CIFAR10_CLASSES if spec.name == "cifar10" else len(classes) == 100
    if not known:
        found = f"its {len(classes)} classes are not those of {spec.name}"
        raise UserError(f"{path}: {found}; give the right archive")


def _check_archive_split(name: str, images: np.ndarray, labels: np.ndarray, classes: int) -> None:
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
