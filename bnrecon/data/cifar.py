"""CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnrecon.data.published import Arrays
from bnrecon.data.small_images import SmallImages

CIFAR10_CLASSES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)


class _Cifar(SmallImages):
    """What the two have in common: torchvision's loader, of Python's pickles.

    It verifies each file's published checksum first: what is damaged is never unpickled.
    """

    kind: str

    @property
    def loader(self) -> Any:
        """The class of torchvision, imported on first use."""
        from torchvision import datasets

        return getattr(datasets, self.kind)

    @property
    def url(self) -> str:
        return self.loader.url

    def read(self) -> Arrays:
        train, test = (self.loader(self.root, train=split) for split in (True, False))
        first, second = ((split.data, np.array(split.targets)) for split in (train, test))
        return train.classes, first, second

    def download(self) -> None:
        from torchvision.datasets.utils import download_and_extract_archive

        kind = self.loader
        download_and_extract_archive(kind.url, self.root, None, kind.filename, kind.tgz_md5)


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


load_cifar10 = _Cifar10.load
load_cifar100 = _Cifar100.load
