"""Test accuracy and agreement of networks, in true float32."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn
from tqdm import tqdm

from bnrecon.data import Images
from bnrecon.hardware import exact_float32

__all__ = ["Accuracy", "Agreement", "agreement", "test_accuracy"]


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy in percent, and the number of images it was taken over."""

    percent: float
    images: int


@dataclass(frozen=True)
class Agreement:
    """Two networks on the same images: the largest difference of a logit, and the images they put in one class."""

    largest_logit_difference: float
    same_class: int
    images: int


def _logits(network: nn.Module, data: Images, device: torch.device, batch_size: int, **part: int | None) -> Iterator:
    network.eval()
    with torch.inference_mode(), exact_float32():
        for x, y in data.test_batches(batch_size, device, **part):
            yield network(x), x, y


def test_accuracy(
    network: nn.Module, data: Images, device: torch.device, limit: int | None = None, start: int = 0,
    batch_size: int = 250, description: str | None = None,
) -> Accuracy:  # fmt: skip
    """Test accuracy over images ``start`` to ``limit``, in eval mode and float32 with TF32 off.

    With a ``description`` a progress bar is shown.
    """
    correct = images = 0
    total = (data.sizes[1] if limit is None else min(limit, data.sizes[1])) - start
    with tqdm(total=total, desc=description, unit="img", disable=None if description else True, leave=False) as bar:
        for logits, _, y in _logits(network, data, device, batch_size, limit=limit, start=start):
            correct += int((logits.argmax(1) == y).sum())
            images += len(y)
            bar.update(len(y))
    return Accuracy(100 * correct / images, images)


test_accuracy.__test__ = False  # not a test, whatever pytest thinks of its name


def agreement(first: nn.Module, second: nn.Module, data: Images, device: torch.device, limit: int | None) -> Agreement:
    """Run two networks on the first ``limit`` test images and compare their logits."""
    second.eval()
    largest, same, images = 0.0, 0, 0
    for logits, x, _ in _logits(first, data, device, 64, limit=limit):
        with torch.inference_mode(), exact_float32():
            other = second(x)
        largest = max(largest, float((logits - other).abs().max()))
        same += int((logits.argmax(1) == other.argmax(1)).sum())
        images += len(x)
    return Agreement(largest, same, images)
