"""Test accuracy of a target and of its source network, in true float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from tqdm import tqdm

from bnrecon.data import Images
from bnrecon.errors import RunError
from bnrecon.hardware import exact_float32

__all__ = ["Accuracy", "SourceEvaluation", "evaluate_source", "test_accuracy"]


@dataclass(frozen=True)
class Accuracy:
    """Test accuracy in percent, and the number of images it was taken over."""

    percent: float
    images: int


@dataclass(frozen=True)
class SourceEvaluation:
    """Accuracy of a source network, and how it was taken.

    The first ``source_images`` test images went through the real source network, the rest through its collapsed form;
    ``largest_logit_difference`` between the two, and between source and target, is over those first images.
    """

    percent: float
    images: int
    source_images: int
    largest_logit_difference: float
    largest_difference_to_target: float


def test_accuracy(network: nn.Module, data: Images, device: torch.device, description: str | None = None) -> Accuracy:
    """Test accuracy over all test images, in eval mode and float32 with TF32 off; with a ``description``, under a bar.

    Raises ``RunError`` where a logit is not finite: the largest of NaNs is no answer.
    """
    network.eval()
    correct = images = 0
    with _bar(data.sizes[1], description) as bar, torch.inference_mode(), exact_float32():
        for x, y in data.test_batches(250, device):
            correct += int((_finite(network(x), "the network").argmax(1) == y).sum())
            images += len(y)
            bar.update(len(y))
    return Accuracy(100 * correct / images, images)


test_accuracy.__test__ = False  # not a test, whatever pytest thinks of its name


def evaluate_source(
    source: nn.Module, collapsed: nn.Module, target: nn.Module, data: Images, device: torch.device, source_images: int,
    description: str | None = None,
) -> SourceEvaluation:  # fmt: skip
    """Run the source network on the first ``source_images`` test images and its collapsed form on the rest."""
    correct = images = 0
    difference = to_target = 0.0
    source_images = min(source_images, data.sizes[1])
    with _bar(data.sizes[1], description) as bar, torch.inference_mode(), exact_float32():
        for x, y in data.test_batches(64, device, limit=source_images):
            logits = _finite(source(x), "the source network")
            difference = max(difference, float((logits - collapsed(x)).abs().max()))
            to_target = max(to_target, float((logits - target(x)).abs().max()))
            correct += int((logits.argmax(1) == y).sum())
            images += len(y)
            bar.update(len(y))
        for x, y in data.test_batches(250, device, start=source_images):
            correct += int((_finite(collapsed(x), "the source network's collapsed form").argmax(1) == y).sum())
            images += len(y)
            bar.update(len(y))
    return SourceEvaluation(100 * correct / images, images, source_images, difference, to_target)


def _finite(logits: torch.Tensor, whose: str) -> torch.Tensor:
    if not bool(torch.isfinite(logits).all()):
        raise RunError(f"{whose} gives logits that are not finite on test images")
    return logits


def _bar(total: int, description: str | None) -> tqdm:
    return tqdm(total=total, desc=description, unit="img", disable=None if description else True, leave=False)
