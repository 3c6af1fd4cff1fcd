"""ImageNet-sized data: image folders read and transformed by worker processes, the same images in the same order anew."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.transforms import v2 as transforms

from bnrecon.data.image_file import read_image
from bnrecon.runtime.errors import UserError

__all__ = ["StreamedImages"]

SAMPLE = 2000  # files whose content is read for the checksum
# torchvision's published ImageNet channel statistics.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass
class StreamedImages:
    """A classification data set read from files as it is used, with torchvision's standard ImageNet transforms.

    Training images are cropped by RandomResizedCrop to ``side`` and mirrored at random; test images are resized to 8/7 of
    ``side`` and cropped in the centre.
    """

    name: str
    classes: tuple[str, ...]
    train_files: list[tuple[Path, int]]
    test_files: list[tuple[Path, int]]
    side: int = 224
    workers: int = 4
    _checksum: str | None = field(default=None, repr=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image as the network sees it."""
        return 3, self.side, self.side

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of training and of test images."""
        return len(self.train_files), len(self.test_files)

    def checksum(self) -> str:
        """SHA-256 over the files' class/name and size, and over the content of ``SAMPLE`` of them or more, evenly spread.

        Of fewer files all are read. Of ImageNet reading all would take an hour: an image that is replaced by another of the same
        size in bytes goes unnoticed where it is not among those.
        """
        if self._checksum is None:
            self._checksum = self._digest()
        return self._checksum

    def _digest(self) -> str:
        digest = hashlib.sha256()
        listed = self.train_files + self.test_files
        step = max(1, len(listed) // SAMPLE)
        for number, (path, label) in enumerate(listed):
            line = f"{path.parent.name}/{path.name} {path.stat().st_size} {label}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))  # a name need not be UTF-8
            if number % step == 0:
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def batches(self, batch_size: int) -> int:
        """Number of batches in an epoch."""
        return max(1, len(self.train_files) // batch_size)

    def train_batches(
        self,
        batch_size: int,
        seed: int,
        epoch: int,
        device: torch.device,
        start: int = 0,
        dtype: torch.dtype = torch.float32,
        share: tuple[int, int] = (0, 1),
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the epoch's augmented batches from number ``start`` on; an image's crop depends on seed, epoch and place.

        With ``share`` (r, R) only every R-th image of a batch, from the r-th on.
        """
        generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
        order = torch.randperm(len(self.train_files), generator=generator).tolist()
        order = order[start * batch_size : self.batches(batch_size) * batch_size]
        augment = transforms.Compose(
            [
                transforms.RandomResizedCrop(self.side, antialias=True),
                transforms.RandomHorizontalFlip(),
            ]
        )
        first = start * batch_size
        items = [
            (*self.train_files[i], (seed * 1_000_003 + epoch) * 10_000_019 + first + k)
            for k, i in enumerate(order)
        ]
        items = items[
            share[0] :: share[1]
        ]  # a batch's number of images is a multiple of R, so that batches stay together
        for images, labels in self._read(_Files(items, augment), batch_size // share[1]):
            yield _to(images, device, dtype), labels.to(device, non_blocking=True)

    def test_batches(
        self, batch_size: int, device: torch.device, limit: int | None = None, start: int = 0
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the test images in order, from ``start`` up to ``limit``, not augmented."""
        items = [(path, label, None) for path, label in self.test_files[start:limit]]
        for images, labels in self._read(_Files(items, self._centre()), batch_size):
            yield _to(images, device, torch.float32), labels.to(device, non_blocking=True)

    def plain_train_batches(
        self, batch_size: int, device: torch.device, limit: int
    ) -> Iterator[torch.Tensor]:
        """Yield up to ``limit`` training images, evenly spread over the classes, not augmented."""
        step = max(1, len(self.train_files) // limit)
        items = [(path, label, None) for path, label in self.train_files[::step][:limit]]
        for images, _ in self._read(_Files(items, self._centre()), batch_size):
            yield _to(images, device, torch.float32)

    def _centre(self) -> transforms.Transform:
        return transforms.Compose(
            [
                transforms.Resize(self.side * 8 // 7, antialias=True),
                transforms.CenterCrop(self.side),
            ]
        )

    def _read(
        self, dataset: Dataset, batch_size: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        loader = DataLoader(
            dataset,
            batch_size,
            num_workers=self.workers,
            pin_memory=torch.cuda.is_available(),
            collate_fn=_collate,
            worker_init_fn=_apart,
        )
        for batch in loader:
            if isinstance(batch, str):
                raise UserError(batch)
            yield batch


def _to(images: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return images.to(device, dtype, non_blocking=True, memory_format=torch.channels_last)


def _apart(_number: int) -> None:
    """Take a worker out of its parent's group of processes: Ctrl-C and torchrun's signals are for the parent, which saves first."""
    os.setpgid(0, 0)


def _collate(items: list) -> object:
    """A batch, or the first item's complaint: an exception would come out of a worker process as a page of traceback."""
    complaints = [item for item in items if isinstance(item, str)]
    return complaints[0] if complaints else default_collate(items)


class _Files(Dataset):
    """Images by file, each transformed under a seed of its own where it has one."""

    def __init__(self, items: list[tuple[Path, int, int | None]], transform: transforms.Transform):
        self.items = items
        self.transform = transforms.Compose(
            [
                transform,
                transforms.ToImage(),
                transforms.ToDtype(torch.float32, scale=True),
                transforms.Normalize(MEAN, DEVIATION),
            ]
        )

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int] | str:
        path, label, seed = self.items[index]
        try:
            picture = read_image(path)
        except UserError as error:
            return str(error)
        with torch.random.fork_rng(devices=[]):
            if seed is not None:
                torch.manual_seed(seed % 2**63)
            return self.transform(picture), label
