"""The embedded handwritten digits: nothing to download."""

from __future__ import annotations

import numpy as np

from bnrecon.data.in_memory import InMemoryImages, from_arrays
from bnrecon.data.spec import DataSpec


def load_digits(spec: DataSpec) -> InMemoryImages:
    """scikit-learn's 1,797 digits, 8x8, 17 grey levels; 360 fixed ones are test images."""
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    images, labels = datasets.load_digits(return_X_y=True)
    pixels = np.round(images.reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, labels, test_size=360, random_state=0, stratify=labels
    )
    classes = tuple(map(str, range(10)))
    return from_arrays(spec, classes, (train_x, train_y), (test_x, test_y))
