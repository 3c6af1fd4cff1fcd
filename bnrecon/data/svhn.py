"""SVHN, the Street View House Numbers (Netzer et al. 2011): digits cropped to 32x32."""

from __future__ import annotations

from bnrecon.data.published import Arrays
from bnrecon.data.small_images import SmallImages

SPLITS = ("train", "test")  # not "extra": the papers' accuracies are without it


class _Svhn(SmallImages):
    """SVHN: 73,257 training and 26,032 test images.

    torchvision's loader of MATLAB's files verifies their published checksums first. The files call
    the digit 0 by the label 10; the loader changes it to 0.
    """

    files = ("train_32x32.mat", "test_32x32.mat")
    count, classes = 10, tuple("0123456789")
    beside = "cifar10 and cifar100"

    @property
    def url(self) -> str:
        from torchvision import datasets

        return datasets.SVHN.split_list["train"][0].rpartition("/")[0]

    def read(self) -> Arrays:
        from torchvision import datasets

        both = [datasets.SVHN(self.root, split) for split in SPLITS]
        train, test = ((split.data.transpose(0, 2, 3, 1), split.labels) for split in both)
        return self.classes, train, test

    def download(self) -> None:
        from torchvision.datasets import SVHN
        from torchvision.datasets.utils import download_url

        for split in SPLITS:
            url, file, checksum = SVHN.split_list[split]
            download_url(url, self.root, file, checksum)  # nothing where the file is there


load_svhn = _Svhn.load
