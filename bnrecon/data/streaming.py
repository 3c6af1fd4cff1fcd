"""ImageNet-sized data: worker processes read and transform the images, reproducibly."""

from __future__ import annotations

import hashlib
import operator
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from torch.utils.data import DataLoader, Dataset, default_collate

from bnrecon.data.batches import EpochPosition
from bnrecon.data.image_file import read_image
from bnrecon.runtime.errors import RunError, UserError, first_line
from bnrecon.runtime.interruption import leave_group, signals_blocked

SAMPLE = 2000  # files whose content is read for the checksum
Item = tuple[Path, int, int | None]  # an image file, its class number, the seed of its crop
# torchvision's published ImageNet channel statistics.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass
class StreamedImages:
    """A classification data set whose files are read when used.

    It uses torchvision's standard ImageNet transforms: training images are cropped by
    RandomResizedCrop to ``side`` and mirrored at random; test images are resized to 8/7 of ``side``
    and cropped at the centre.
    """

    name: str  # of the data set
    classes: tuple[str, ...]  # names of the classes
    train_files: list[tuple[Path, int]]  # path and class number of each training image
    test_files: list[tuple[Path, int]]  # the same of the test images
    side: int = 224  # of the images as the network sees them
    workers: int = 4  # processes that read files
    _held_out: int = field(default=0, repr=False)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image as the network sees it."""
        return 3, self.side, self.side

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of training and of test images."""
        return len(self.train_files), len(self.test_files)

    def hold_out(self, count: int, limit: int | None = None) -> Self:
        """Test on the ``count`` training images whose digests of class/name are the largest."""

        def digest(item: tuple[Path, int]) -> bytes:  # as good as random, the same in every folder
            return hashlib.blake2b(_class_and_name(item[0]), digest_size=16).digest()

        chosen = sorted(self.train_files, key=digest)[len(self.train_files) - count :]
        held = set(chosen)
        train = [item for item in self.train_files if item not in held]
        return replace(self, train_files=train, test_files=chosen[:limit], _held_out=count)

    def checksum(self) -> str:
        """SHA-256 of the files' class/name and size, and of the content of a sample of them.

        The sample has ``SAMPLE`` files or more, evenly spread, or all if there are fewer. Reading
        all of ImageNet would take an hour: an image outside the sample that is replaced by one of
        the same size in bytes goes unnoticed.
        """
        return self._checksum

    @cached_property
    def _checksum(self) -> str:
        digest = hashlib.sha256()
        if self._held_out:  # the list does not show where the training images end
            digest.update(f"{self._held_out} held out\n".encode())
        listed = self.train_files + self.test_files
        step = max(1, len(listed) // SAMPLE)
        for number, (path, label) in enumerate(listed):
            digest.update(_class_and_name(path) + f" {path.stat().st_size} {label}\n".encode())
            if number % step == 0:
                digest.update(path.read_bytes())
        return digest.hexdigest()

    def batches(self, batch_size: int) -> int:
        """Number of batches in an epoch; an incomplete batch counts only if it is the only one."""
        return max(1, len(self.train_files) // batch_size)

    def train_batches(
        self, at: EpochPosition, device: torch.device, dtype: torch.dtype = torch.float32
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the epoch's augmented batches; see ``InMemoryImages``.

        An image's crop also depends on its position in the order.
        """
        first = at.start * at.batch_size
        count = len(self.train_files)
        order = torch.randperm(count, device="cpu", generator=at.generator()).tolist()
        order = order[first : self.batches(at.batch_size) * at.batch_size]
        v2 = _transforms()
        augment = v2.Compose(
            [v2.RandomResizedCrop(self.side, antialias=True), v2.RandomHorizontalFlip()]
        )
        crops = enumerate(order, at.number * 10_000_019 + first)
        items: list[Item] = [(*self.train_files[i], seed) for seed, i in crops]
        # A batch has a multiple of R images, so that all processes share the same batches.
        rank, processes = at.share
        items = items[rank::processes]
        for images, labels in self._read(_Files(items, augment), at.batch_size // processes):
            yield _to(images, device, dtype), labels.to(device, non_blocking=True)

    def test_batches(
        self, batch_size: int, device: torch.device, limit: int | None = None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the test images with their class numbers; see ``InMemoryImages``."""
        yield from self._plain_batches(self.test_files[:limit], batch_size, device)

    def plain_train_batches(
        self, batch_size: int, device: torch.device, limit: int
    ) -> Iterator[torch.Tensor]:
        """Yield up to ``limit`` training images, evenly spread over the classes, not augmented."""
        count = len(self.train_files)
        taken = min(limit, count)
        by_class = sorted(self.train_files, key=operator.itemgetter(1))  # limited ones are in turn
        files = [by_class[i * count // taken] for i in range(taken)]
        yield from (images for images, _ in self._plain_batches(files, batch_size, device))

    def _plain_batches(
        self, files: list[tuple[Path, int]], batch_size: int, device: torch.device
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        v2, side = _transforms(), self.side
        centre = v2.Compose([v2.Resize(side * 8 // 7, antialias=True), v2.CenterCrop(side)])
        items: list[Item] = [(path, label, None) for path, label in files]
        for images, labels in self._read(_Files(items, centre), batch_size):
            yield _to(images, device, torch.float32), labels.to(device, non_blocking=True)

    def _read(
        self, dataset: Dataset, batch_size: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        with signals_blocked(), warnings.catch_warnings():
            # More workers than cores are allowed: they wait for the disk.
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            loader = DataLoader(
                dataset,
                batch_size,
                num_workers=self.workers,
                pin_memory=torch.cuda.is_available(),
                collate_fn=_collate,
                worker_init_fn=leave_group,
            )
            batches = iter(loader)
        while (batch := _next(batches)) is not None:
            if isinstance(batch, str):
                raise UserError(batch)
            yield batch


def _next(batches: Iterator[Any]) -> Any:
    """The next batch, None at the end; raise ``RunError`` if a worker was killed."""
    try:
        return next(batches, None)
    except (RuntimeError, ConnectionError, EOFError) as error:
        killed = "DataLoader worker (pid" in str(error) or not isinstance(error, RuntimeError)
        if not killed or str(error).startswith("Caught "):  # raised by the code that reads
            raise
        reason = f"a process that reads images was killed ({first_line(error)})"
        advice = "if memory is short, or a container's shared memory, give fewer workers=, or 0"
        raise RunError(f"{reason}; {advice}") from None


def _class_and_name(path: Path) -> bytes:
    """An image's path below its split; a name need not be UTF-8."""
    return f"{path.parent.name}/{path.name}".encode("utf-8", "surrogateescape")


def _to(images: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    return images.to(device, dtype, non_blocking=True, memory_format=torch.channels_last)


def _collate(items: list) -> object:
    """A batch, or the first error: an exception in a worker would show a long traceback."""
    errors = [item for item in items if isinstance(item, str)]
    return errors[0] if errors else default_collate(items)


def _transforms() -> Any:
    """Torchvision's transforms, imported on first use: they take two seconds to load."""
    from torchvision.transforms import v2

    return v2


class _Files(Dataset):
    """Images by file, each transformed with its seed, if it has one."""

    def __init__(self, items: list[Item], transform: Any):
        self.items = items
        v2 = _transforms()
        self.transform = v2.Compose(
            [
                transform,
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(MEAN, DEVIATION),
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
