"""Data sets of random images: folder trees, CIFAR archives, and refused data."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bnrecon.data import load
from bnrecon.data.small_images import CIFAR10_CLASSES
from bnrecon.runtime.errors import UserError


def pixels(count, seed, side=32):
    """Random images (N, H, W, C)."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def tree(root, classes=("ant", "bee"), train=6, test=3, side=8, seed=0, tests="test"):
    """A small tree of random images; returns its root. ImageNet calls the test split ``val``."""
    pictures = iter(pixels((train + test) * len(classes), seed, side))
    for split, count in (("train", train), (tests, test)):
        for name in classes:
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                Image.fromarray(next(pictures)).save(root / split / name / f"{number}.png")
    return root


def write_cifar(folder, train=10, test=10, test_seed=0, name="cifar10", **change):
    """A complete cifar10.npz with changed or missing arrays; training images are fixed."""
    arrays, classes = {"classes": CIFAR10_CLASSES}, int(name.removeprefix("cifar"))
    for split, count, seed in (("train", train, 1), ("test", test, test_seed)):
        arrays |= {f"{split}_x": pixels(count, seed), f"{split}_y": np.arange(count) % classes}
    arrays = {key: array for key, array in (arrays | change).items() if array is not None}
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)


class Bomb:
    """Leaves a trace in a folder when unpickled."""

    def __init__(self, folder):
        self.trace = folder / "exploded"

    def __reduce__(self):
        return Path.touch, (self.trace,)


def refused(spec, line):
    """Load data that is refused in one printable line; return the line."""
    with pytest.raises(UserError, match=line) as raised:
        load(spec)
    assert str(raised.value).isprintable()
    return str(raised.value)
