"""From a data set's name and folder to its images, every way this can go wrong said in one line."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from bnrecon.data.image_file import IMAGE_SUFFIXES, printable, read_image
from bnrecon.data.in_memory import InMemoryImages
from bnrecon.data.streaming import StreamedImages
from bnrecon.runtime.errors import Interrupted, RunError, UserError, nearest
from bnrecon.runtime.hardware import available_memory, gigabytes
from bnrecon.runtime.locks import exclusive

__all__ = ["DATASETS", "DataSpec", "load", "refuse_unused_root"]

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
MOST_SIDE = 4096  # 50 MB an image
MOST_ARCHIVE = 10**9  # bytes, unpacked; either CIFAR has 185 MB


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

    Raises ``UserError`` naming what is missing or damaged, where, and what to do; or the option
    that makes no sense.

    >>> load(DataSpec("digits")).sizes
    (1437, 360)
    """
    _check(spec)
    try:
        if spec.root is not None:
            spec = dataclasses.replace(spec, root=_folder_given(spec))
        return DATASETS[spec.name](spec)
    except UserError as error:
        raise UserError(printable(str(error))) from None
    except OSError as error:
        what = error.filename or spec.root or spec.name
        raise UserError(printable(f"{what} cannot be read ({error.strerror or error})")) from None


def _folder_given(spec: DataSpec) -> str:
    """``spec.root`` with ``~`` written out; raises ``UserError`` where it is no folder."""
    root = os.path.expanduser(spec.root)
    try:
        os.stat(os.path.join(root, ""))  # with a slash behind, only a folder will do
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        shown = root if len(root) <= 200 else f"{root[:200]}..."
        line = f"data.root={shown}: no such folder ({reason})"
        held = (
            "train/<class>/* and test/<class>/* images"
            if spec.name == "folder"
            else f"the {spec.name} files"
        )
        raise UserError(f"{line}; give the folder that holds {held}") from None
    return root


def refuse_unused_root(spec: DataSpec) -> None:
    """Raise ``UserError`` where a folder is given for a data set without files.

    Unsaid, the digits would be trained on in its place. ``load`` does not ask: a study passes one
    ``root`` to all its runs.

    >>> refuse_unused_root(DataSpec("digits", root="mine"))
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: data.root=mine: data=digits has no files; for your own images ...
    """
    if spec.name == "digits" and spec.root is not None:
        given = f"data.root={printable(spec.root)}"
        raise UserError(
            f"{given}: data=digits has no files; for your own images give data=folder {given}"
        )


def _check(spec: DataSpec) -> None:
    """Raise ``UserError`` for options that make no sense; memory grows with a side's square."""
    if spec.name not in DATASETS:
        raise UserError(f"data.name={spec.name}: {nearest(spec.name, DATASETS)}")
    if spec.root == "":
        raise UserError(
            f"data.root is empty; give the folder of {spec.name}'s files, or leave it out"
        )
    if spec.side is not None and spec.name not in ("folder", "imagenet"):
        raise UserError(
            f"data.side={spec.side}: {spec.name} images have one size; data.side is for data=folder and data=imagenet"
        )
    cores = os.cpu_count() or 1
    for option, value, least, most, why in (
        ("train_limit", spec.train_limit, 1, None, ""),
        ("test_limit", spec.test_limit, 1, None, ""),
        ("side", spec.side, 1, MOST_SIDE, ""),
        ("crop_padding", spec.crop_padding, 0, None, ""),  # its upper bound is the images' side
        ("workers", spec.workers, 0, max(32, 4 * cores), f" on {cores} cores"),
    ):
        if value is not None and value < least:
            raise UserError(f"data.{option}={value}: must be {least} or above")
        if value is not None and most is not None and value > most:
            raise UserError(f"data.{option}={value}: at most {most}{why}")


def _in_memory(spec: DataSpec, classes, train_x, train_y, test_x, test_y) -> InMemoryImages:
    _refuse_one_image(len(train_x), spec)
    if spec.crop_padding >= (side := min(train_x.shape[1:3])):
        raise UserError(
            f"data.crop_padding={spec.crop_padding}: must be below {side} for images of "
            f"{_size(train_x[0])}, or a crop could miss the image"
        )
    train = _in_canonical_order(train_x, train_y, spec.train_limit)
    test = _in_canonical_order(test_x, test_y, spec.test_limit)
    return InMemoryImages(spec.name, tuple(classes), *train, *test, spec.crop_padding, spec.flip)


def _refuse_one_image(count: int, spec: DataSpec) -> None:
    if count < 2:
        where = spec.root or default_root()
        raise UserError(f"{where}: {count} training image; training needs two or more, add some")


def _in_canonical_order(
    images: np.ndarray, labels: np.ndarray, limit: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Order images by a digest of their pixels: the same data give the same run, whichever way its files are laid out.

    The order is as good as random, so that any leading part is a sample of all classes.
    """
    images = np.ascontiguousarray(images)
    digests = [hashlib.blake2b(image, digest_size=16).digest() for image in images]
    order = np.array(sorted(range(len(images)), key=digests.__getitem__))[:limit]
    return torch.from_numpy(images[order]), torch.from_numpy(np.asarray(labels, np.int64)[order])


def _digits(spec: DataSpec) -> InMemoryImages:
    """scikit-learn's 1,797 handwritten digits, 8x8, 17 grey levels; 360 of them, the same ones always, are test images."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    pixels = np.round(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, labels, test_size=360, random_state=0, stratify=labels
    )
    return _in_memory(spec, map(str, range(10)), train_x, train_y, test_x, test_y)


def default_root() -> Path:
    """Where data sets are downloaded to: ``$BNRECON_DATA``, or a folder in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("BNRECON_DATA") or Path(cache) / "bnrecon" / "data")


def _cifar(spec: DataSpec) -> InMemoryImages:
    """CIFAR-10 or CIFAR-100: torchvision's files (downloaded if need be), a tree of images, an npz.

    What is named after the data set comes first, so that one folder can hold both; a tree without
    a name comes last.
    """
    root = Path(spec.root) if spec.root else default_root()
    expected = CIFAR10_CLASSES if spec.name == "cifar10" else 100
    if (root / spec.name / "train").is_dir():
        return _in_memory(spec, *_read_tree(root / spec.name, spec, expected))
    if (root / f"{spec.name}.npz").is_file():
        return _read_archive(root / f"{spec.name}.npz", spec)
    if not (root / _torchvision_kind(spec).base_folder).is_dir() and (root / "train").is_dir():
        return _in_memory(spec, *_read_tree(root, spec, expected))
    return _torchvision_cifar(root, spec)


def _torchvision_kind(spec: DataSpec) -> type:
    from torchvision import datasets

    return datasets.CIFAR10 if spec.name == "cifar10" else datasets.CIFAR100


def _layouts(spec: DataSpec) -> str:
    other = "cifar100" if spec.name == "cifar10" else "cifar10"
    kinds = f"{spec.name}.npz, {spec.name}/{{train,test}}/<class>/* images"
    published = f"torchvision's {_torchvision_kind(spec).base_folder}"
    beside = f"the same folder can hold {other} in the same way"
    return f"give data.root=FOLDER that holds {kinds}, or {published} ({beside})"


def _torchvision_cifar(root: Path, spec: DataSpec) -> InMemoryImages:
    """Read torchvision's files; download what is missing or damaged, if that is allowed.

    torchvision verifies each file's published checksum first: what is damaged is never unpickled.
    """
    from torchvision.datasets.utils import download_and_extract_archive

    kind = _torchvision_kind(spec)
    folder = root / kind.base_folder
    state = f"{spec.name} is not in {root}"
    if folder.exists():
        state = f"{spec.name}: {folder} is not complete, or damaged (by its files' checksums)"

    def both():
        return kind(root, train=True), kind(root, train=False)

    try:
        train, test = both()
    except RuntimeError:
        if not spec.download:
            raise UserError(f"{state}; {_layouts(spec)}, or allow data.download=true") from None
        # Only now is anything written: files at hand may lie in a folder that is not ours.
        try:
            with exclusive(root, f"downloading {spec.name} to {root}"):
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
    return _in_memory(
        spec, train.classes, train.data, np.array(train.targets), test.data, np.array(test.targets)
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [error.__class__.__name__])[0].rstrip(".")[:200]


def _read_archive(path: Path, spec: DataSpec) -> InMemoryImages:
    names = ("classes", "train_x", "train_y", "test_x", "test_y")
    try:
        with np.load(path, allow_pickle=False) as archive:
            if sum(entry.file_size for entry in archive.zip.infolist()) > MOST_ARCHIVE:
                raise ValueError(f"over {gigabytes(MOST_ARCHIVE)} unpacked")
            arrays = [archive[name] for name in names]
    except Exception as error:  # zipfile, zlib, numpy and the system each raise their own
        raise UserError(
            f"{path} is damaged or not an archive of {', '.join(names)} ({_first_line(error)}); replace it"
        ) from None
    for name, array in zip(names[1::2], arrays[1::2], strict=True):
        if array.dtype != np.uint8 or array.ndim != 4:
            raise UserError(
                f"{path}: {name} is {array.dtype} of shape {array.shape}; it must be uint8 (N, H, W, C)"
            )
    classes = [str(name) for name in np.atleast_1d(arrays[0])]
    expected = CIFAR10_CLASSES if spec.name == "cifar10" else None
    if (expected and tuple(classes) != expected) or (expected is None and len(classes) != 100):
        raise UserError(
            f"{path}: its {len(classes)} classes are not those of {spec.name}; give the right archive"
        )
    for split, images, labels in (("train", *arrays[1:3]), ("test", *arrays[3:])):
        if images.shape[1:] != (32, 32, 3) or len(images) == 0:
            raise UserError(
                f"{path}: {split}_x is of shape {images.shape}; it must be (N, 32, 32, 3)"
            )
        if labels.shape != (len(images),) or labels.dtype.kind not in "iu":
            raise UserError(
                f"{path}: {split}_y is {labels.dtype} of shape {labels.shape}; it must be whole numbers ({len(images)},)"
            )
        if labels.min() < 0 or labels.max() >= len(classes):
            raise UserError(
                f"{path}: {split}_y runs from {labels.min()} to {labels.max()}; classes are 0 to {len(classes) - 1}"
            )
    return _in_memory(spec, classes, *arrays[1:])


def _folder(spec: DataSpec) -> InMemoryImages:
    """Any tree of train/<class>/* and test/<class>/* images; of one size, or resized to ``side``."""
    if spec.root is None:
        raise UserError(
            "data=folder needs data.root=FOLDER, a folder that holds train/<class>/* and test/<class>/* images"
        )
    return _in_memory(spec, *_read_tree(Path(spec.root), spec, None))


def _imagenet(spec: DataSpec) -> StreamedImages:
    """ImageNet's image folders, train/<class>/* and val/<class>/* (or test/<class>/*)."""
    if spec.root is None:
        raise UserError(
            "data=imagenet needs data.root=FOLDER, a folder that holds train/<class>/* and val/<class>/* images"
        )
    root = Path(spec.root)
    held_out = root / "val" if (root / "val").is_dir() else root / "test"
    classes, train = _list_split(root / "train", None, spec.train_limit)
    _, test = _list_split(held_out, classes, spec.test_limit)
    if spec.train_limit != 1:
        _refuse_one_image(len(train), spec)
    return StreamedImages(spec.name, tuple(classes), train, test, spec.side or 224, spec.workers)


def _list_split(
    folder: Path, expected: list[str] | None, limit: int | None = None
) -> tuple[list[str], list[tuple[Path, int]]]:
    """List a split's images with their class numbers; the classes must be the expected ones and none may be empty.

    With a limit, images are taken from the classes in turn, so that a few still show all classes.
    """
    if not folder.is_dir():
        raise UserError(
            f"{folder} is missing; data.root must hold train/<class>/* and test/<class>/* images"
        )
    classes = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() and not entry.name.startswith(".")
    )
    if expected is not None:
        _require_classes(folder, classes, expected)
    if not classes:
        raise UserError(f"{folder} holds no class folders; it must hold <class>/* images")
    columns = [[(path, i) for path in _images(folder / name)] for i, name in enumerate(classes)]
    if limit is None:
        return classes, [item for column in columns for item in column]
    depth = max(len(column) for column in columns)
    return classes, [column[i] for i in range(depth) for column in columns if i < len(column)][
        :limit
    ]


def _require_classes(folder: Path, classes: list[str], expected: Sequence[str]) -> None:
    if classes == list(expected):
        return
    missing, extra = sorted(set(expected) - set(classes)), sorted(set(classes) - set(expected))
    named = (("missing", missing), ("not known", extra))
    found = "; ".join(f"{word} {', '.join(names[:5])}" for word, names in named if names)
    raise UserError(f"{folder}: the class folders are not the expected {len(expected)} ({found})")


def _images(folder: Path) -> list[Path]:
    """A class folder's images by name; only regular files and links to such: a pipe never ends."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            path = folder / entry.name
            if path.suffix.lower() not in IMAGE_SUFFIXES or entry.name.startswith("."):
                continue
            # A link alone costs a look at the disk: ImageNet has a million files.
            if not (entry.is_file(follow_symlinks=False) or path.is_file()):
                raise UserError(f"{path} is neither a regular file nor a link to one; remove it")
            found.append(path)
    if not found:
        suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
        raise UserError(f"{folder} holds no images ({suffixes}); add some or remove the class")
    return sorted(found)


def _read_tree(folder: Path, spec: DataSpec, expected: tuple[str, ...] | int | None):
    """Read a whole tree into arrays: classes, train_x, train_y, test_x, test_y."""
    classes, train = _list_split(folder / "train", None)
    wanted = expected if isinstance(expected, int | None) else len(expected)
    if wanted not in (None, len(classes)):
        found = f"{folder / 'train'} holds {len(classes)} class folders; {spec.name} has {wanted}"
        raise UserError(f"{found}; {_layouts(spec)}")
    if isinstance(expected, tuple):
        _require_classes(folder / "train", classes, expected)
    _, test = _list_split(folder / "test", classes)
    arrays: list = [classes]
    for files in (train, test):
        arrays += [
            _read_images([path for path, _ in files], spec),
            np.array([label for _, label in files]),
        ]
    if arrays[1].shape[1:] != arrays[3].shape[1:]:
        raise UserError(
            f"{folder}: training images are {_size(arrays[1][0])}, test images {_size(arrays[3][0])}; give data.side=32, say"
        )
    return arrays


def _read_images(paths: list[Path], spec: DataSpec) -> np.ndarray:
    """Read images into one array (N, H, W, 3), several at a time."""

    def read(path: Path) -> np.ndarray:
        picture = read_image(path)
        if spec.side is not None and picture.size != (spec.side, spec.side):
            picture = picture.resize((spec.side, spec.side))
        return np.asarray(picture)

    first = read(paths[0])
    needed = 2 * len(paths) * first.nbytes  # twice: they are put in order afterwards
    if needed > (free := available_memory(torch.device("cpu"))):
        raise UserError(
            f"{paths[0].parents[1]}: {len(paths):,} images of {_size(first)} take "
            f"{gigabytes(needed)} to read and {gigabytes(free)} are free; give a smaller data.side"
        )
    images = np.empty((len(paths), *first.shape), np.uint8)

    def place(number: int) -> None:
        image = read(paths[number])
        if image.shape != first.shape:
            sizes = f"{paths[number]} is {_size(image)}, {paths[0].name} is {_size(first)}"
            raise UserError(f"{sizes}; give data.side=32, say, to resize all")
        images[number] = image

    with ThreadPoolExecutor(max(2, spec.workers)) as pool:
        list(pool.map(place, range(len(paths))))  # what an image raises comes out here
    return images


def _size(image: np.ndarray) -> str:
    return f"{image.shape[1]}x{image.shape[0]}"


DATASETS: dict[str, Callable[[DataSpec], InMemoryImages | StreamedImages]] = {
    "digits": _digits,
    "cifar10": _cifar,
    "cifar100": _cifar,
    "folder": _folder,
    "imagenet": _imagenet,
}
