"""Data sets of random pictures: trees of folders, an archive of CIFAR, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bnrecon.data import load
from bnrecon.data.small_images import CIFAR10_CLASSES
from bnrecon.runtime.errors import UserError


def pixels(count, seed, side=32):
    """Random pictures (N, H, W, C)."""
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def tree(root, classes=("ant", "bee"), train=6, test=3, side=8, seed=0, tests="test"):
    """A small image tree of random pictures; returns its root. ImageNet calls the tests ``val``."""
    pictures = iter(pixels((train + test) * len(classes), seed, side))
    for split, count in (("train", train), (tests, test)):
        for name in classes:
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                Image.fromarray(next(pictures)).save(root / split / name / f"{number}.png")
    return root


def write_cifar(folder, train=10, test=10, test_seed=0, name="cifar10", **change):
    """A whole cifar10.npz, but for what is changed in it or left out; its training images stay."""
    arrays, classes = {"classes": CIFAR10_CLASSES}, int(name.removeprefix("cifar"))
    for split, count, seed in (("train", train, 1), ("test", test, test_seed)):
        arrays |= {f"{split}_x": pixels(count, seed), f"{split}_y": np.arange(count) % classes}
    arrays = {key: array for key, array in (arrays | change).items() if array is not None}
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)


class Bomb:
    """What is unpickled of it leaves a trace in a folder."""

    def __init__(self, folder):
        self.trace = folder / "exploded"

    def __reduce__(self):
        return Path.touch, (self.trace,)


def refused(spec, line):
    """Load; the refusal is one printable line that matches."""
    with pytest.raises(UserError, match=line) as raised:
        load(spec)
    assert str(raised.value).isprintable()
    return str(raised.value)
