"""Images of CIFAR-10's size."""

import numpy as np
import pytest

from bnrecon.data.small_images import CIFAR10_CLASSES


@pytest.fixture(scope="session")
def cifar(tmp_path_factory):
    """The folder of a cifar10.npz of noise."""
    generator = np.random.default_rng(0)
    arrays = {"classes": list(CIFAR10_CLASSES)}
    for split, count in (("train", 600), ("test", 140)):
        arrays[f"{split}_x"] = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"{split}_y"] = np.arange(count) % 10
    folder = tmp_path_factory.mktemp("cifar")
    np.savez(folder / "cifar10.npz", **arrays)
    return folder
