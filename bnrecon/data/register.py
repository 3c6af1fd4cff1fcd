"""A user's images, from a function that returns torch data sets or tensors."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from bnrecon.data.archive import check_split, count_classes, warn_of_empty_classes
from bnrecon.data.in_memory import InMemoryImages, from_arrays
from bnrecon.data.loading import DATASETS
from bnrecon.data.spec import DATASET_NAMES, IMAGE_KEYS, DataSpec
from bnrecon.data.tree import Split
from bnrecon.runtime.errors import UserError, shorten
from bnrecon.runtime.user_code import Registered, attribute_errors, require_name

logger = logging.getLogger(__name__)

LABELS = ("label", "labels")


def register_data(name: str) -> Callable[[Callable], Callable]:
    """Register a function of a ``DataSpec`` that returns training and test images.

    Each is a map-style ``torch.utils.data.Dataset`` (torchvision's, or Hugging Face's) or a tuple
    of images and class numbers (N,). An item of a data set is a pair (image, class number), or a
    mapping with ``image`` (or ``images``, ``img``, ``pixel_values``) and ``label`` (or ``labels``).

    All images have one size: PIL images, tensors (C, H, W) or NumPy arrays (H, W, C), grey ones
    also (H, W), in uint8 or in floats from 0 to 1, which are rounded to 8 bits. Return them without
    crops and normalization, which follow from ``DataSpec`` and the training images. The training
    images' ``classes`` name the classes; otherwise they are numbered. Results are identified by
    the pixels, not by the code that made them.

    Args:
        name: the name for ``data=name``.

    Raises:
        UserError: bnrecon uses the name.

    >>> @register_data("noise")
    ... def noise(spec):
    ...     images = torch.randint(256, (12, 3, 8, 8), dtype=torch.uint8)
    ...     labels = torch.arange(12) % 3
    ...     return (images[:8], labels[:8]), (images[8:], labels[8:])
    >>> from bnrecon.data import load
    >>> load(DataSpec("noise")).shape
    (3, 8, 8)
    >>> _ = DATASETS.pop("noise")
    """
    require_name("register_data", name)
    if name in DATASET_NAMES:
        raise UserError(f"data={name} is bnrecon's own; register yours under another name")

    def add(function: Callable) -> Callable:
        registered = Registered(f"data {name}", function)

        def read(spec: DataSpec) -> InMemoryImages:
            with attribute_errors(registered):
                both = function(spec)
                if not isinstance(both, tuple | list) or len(both) != 2:
                    returned = type(both).__name__
                    raise UserError(f"data {name}: it returned {returned}; return (train, test)")
                splits = [
                    _read_split(split, f"data {name}: {which}")
                    for split, which in zip(both, ("train", "test"), strict=True)
                ]
                numbers = range(count_classes(f"data {name}", *(labels for _, labels in splits)))
                classes = [str(label) for label in getattr(both[0], "classes", numbers)]
                others = [str(label) for label in getattr(both[1], "classes", [])]
                # ImageFolder numbers the classes that it finds.
                if hasattr(both[0], "classes") and any(map(operator.ne, classes, others)):
                    raise UserError(
                        f"data {name}: train has the classes {shorten(classes)}, test "
                        f"{shorten(others)}; number them in one list"
                    )
            for (images, labels), which in zip(splits, ("train", "test"), strict=True):
                what, shape = f"data {name}: {which}", splits[0][0].shape[1:]
                check_split(what, images, labels, len(classes), shape)
            warn_of_empty_classes(f"data {name}: train", splits[0][1], len(classes))
            return from_arrays(spec, classes, *splits)

        registered.warn_of_replacing(getattr(DATASETS.get(name), "registered", None))
        read.registered = registered  # type: ignore[attr-defined]
        DATASETS[name] = read
        return function

    return add


def _read_split(split: Any, name: str) -> Split:
    if isinstance(split, tuple):
        images, labels = split
    else:  # a map-style data set may have no iterator, or an endless one
        sized = hasattr(split, "__len__")
        items = map(split.__getitem__, range(len(split))) if sized else iter(split)
        images, labels = zip(*map(_pair, items), strict=True)
    return _pixels(_stacked(images, name), name), np.asarray(labels)


def _pair(item: Any) -> tuple[Any, Any]:
    """Image and class number of an item."""
    if not isinstance(item, Mapping):
        return item[0], item[1]
    image, label = (
        next((key for key in keys if key in item), None) for keys in (IMAGE_KEYS, LABELS)
    )
    if image is None or label is None:
        required = f"one of {', '.join(IMAGE_KEYS)} and one of {', '.join(LABELS)}"
        raise ValueError(f"an item has {shorten([*map(str, item)])}; it must have {required}")
    return item[image], item[label]


def _stacked(images: Any, name: str) -> torch.Tensor | np.ndarray:
    """Images of one size as one array."""
    if not isinstance(images, Sequence):
        return images
    if isinstance(images[0], Image.Image):
        images = [np.asarray(_grey_or_rgb(image)) for image in images]
    if len(shapes := {tuple(image.shape) for image in images}) > 1:
        first, second = sorted(shapes)[:2]
        raise UserError(f"{name}: images of shapes {first} and {second}; make all of one size")
    return torch.stack(images) if isinstance(images[0], torch.Tensor) else np.stack(images)


def _grey_or_rgb(image: Image.Image) -> Image.Image:
    """Convert to 8 bits per channel; palettes and transparency become colours."""
    if image.mode in ("L", "RGB"):
        return image
    if image.mode in ("1", "P", "RGBA", "LA", "CMYK"):
        return image.convert("RGB")
    raise ValueError(f"an image has mode {image.mode}; give it with 8 bits, L or RGB")


def _pixels(images: torch.Tensor | np.ndarray, name: str) -> np.ndarray:
    """Images as uint8 (N, H, W, C)."""
    if isinstance(images, torch.Tensor):
        images = images.detach().cpu()
        if images.ndim == 4:
            images = images.permute(0, 2, 3, 1)
        images = images.numpy()
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype.kind != "f":
        return images
    if not (images.min() >= 0 and images.max() <= 1):
        least, most = float(images.min()), float(images.max())
        raise UserError(
            f"{name}: pixels from {least:.3g} to {most:.3g}; give floats from 0 to 1 or uint8, "
            "before any normalization"
        )
    rounded = np.rint(255 * images)
    if (off := float(np.abs(rounded / 255 - images).max())) > 1e-6:
        logger.warning("%s: pixels are rounded to 8 bits, by up to %.1g", name, off)
    return rounded.astype(np.uint8)
