"""Published data sets of 32x32 colour images, in any of the usual layouts.

CIFAR-10, CIFAR-100, and SVHN, the Street View House Numbers (Netzer et al. 2011).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bnrecon.data.archive import read_archive
from bnrecon.data.published import Arrays, Published
from bnrecon.data.tree import list_split, read_tree, require_classes
from bnrecon.runtime.errors import UserError

SHAPE = (32, 32, 3)
CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
SPLITS = ("train", "test")  # without SVHN's "extra", as in the papers


class _SmallImages(Published):
    """Images as torchvision's files (downloaded if need be), a tree of images or an npz archive."""

    count: int  # number of classes
    classes: tuple[str, ...] | None  # their names in order; ``None`` allows any
    beside: str  # other data sets that the same folder can hold

    def layouts(self) -> str:
        """What the root may hold."""
        name = self.spec.name
        kinds = f"{name}.npz, {name}/{{train,test}}/<class>/* images"
        published = f"torchvision's {' and '.join(self.files)}"
        beside = f"the same folder can hold {self.beside} in the same way"
        return f"give root=FOLDER that holds {kinds}, or {published} ({beside})"

    def arrays(self) -> Arrays:
        """Read the data set in any layout of the root; an archive comes second."""
        root, name = self.root, self.spec.name
        archive = root / f"{name}.npz"
        if archive.is_file() and not (root / name / "train").is_dir():
            return read_archive(archive, name, self.count, self.classes, SHAPE)
        return super().arrays()

    def read_folder(self, folder: Path) -> Arrays:
        """Read {train,test}/<class>/* images."""
        train = folder / "train"
        classes, _ = list_split(train, None)
        if len(classes) != self.count:
            fault = f"{train} holds {len(classes)} class folders; {self.spec.name} has {self.count}"
            raise UserError(f"{fault}; {self.layouts()}")
        if self.classes is not None:
            require_classes(train, classes, self.classes)
        return read_tree(folder, self.spec)


class _Cifar(_SmallImages):
    """CIFAR by torchvision's loader, which verifies checksums before it unpickles a file."""

    kind: str

    @property
    def loader(self) -> Any:
        """The class of torchvision, imported on first use."""
        from torchvision import datasets

        return getattr(datasets, self.kind)

    @property
    def url(self) -> str:
        return self.loader.url

    def read(self, download: bool = False) -> Arrays:
        if download:  # torchvision's download ignores a damaged file of classes
            from torchvision.datasets.utils import download_and_extract_archive

            file = self.loader.filename, self.loader.tgz_md5
            download_and_extract_archive(self.url, self.root, None, *file)
        train, test = (self.loader(self.root, train=split) for split in (True, False))
        first, second = ((split.data, np.array(split.targets)) for split in (train, test))
        return train.classes, first, second


class _Cifar10(_Cifar):
    """CIFAR-10: 50,000 training and 10,000 test images."""

    kind, files = "CIFAR10", ("cifar-10-batches-py",)
    count, classes = 10, CIFAR10_CLASSES
    beside = "cifar100"


class _Cifar100(_Cifar):
    """CIFAR-100: 50,000 training and 10,000 test images."""

    kind, files = "CIFAR100", ("cifar-100-python",)
    count, classes = 100, None
    beside = "cifar10"


class _Svhn(_SmallImages):
    """SVHN: 73,257 training and 26,032 test images; the loader changes the label 10 to 0."""

    files = ("train_32x32.mat", "test_32x32.mat")
    count, classes = 10, tuple("0123456789")
    beside = "cifar10 and cifar100"

    @property
    def url(self) -> str:
        from torchvision import datasets

        return datasets.SVHN.split_list["train"][0].rpartition("/")[0]

    def read(self, download: bool = False) -> Arrays:
        from torchvision import datasets

        both = [datasets.SVHN(self.root, split, download=download) for split in SPLITS]
        train, test = ((split.data.transpose(0, 2, 3, 1), split.labels) for split in both)
        return self.classes, train, test


load_cifar10 = _Cifar10.load
load_cifar100 = _Cifar100.load
load_svhn = _Svhn.load
