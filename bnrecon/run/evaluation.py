"""Test accuracy of a source network: the real one on some images, its collapsed form on the rest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from bnrecon.data import Images
from bnrecon.runtime.hardware import exact_float32
from bnrecon.targets.accuracy import finite_logits, image_bar

__all__ = ["SourceEvaluation", "evaluate_source"]


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


def evaluate_source(
    source: nn.Module,
    collapsed: nn.Module,
    target: nn.Module,
    data: Images,
    device: torch.device,
    source_images: int,
    description: str | None = None,
) -> SourceEvaluation:
    """Run the source network on the first ``source_images`` test images and its collapsed form on the rest."""
    correct = images = 0
    difference = to_target = 0.0
    source_images = min(source_images, data.sizes[1])
    with image_bar(data.sizes[1], description) as bar, torch.inference_mode(), exact_float32():
        for x, y in data.test_batches(64, device, limit=source_images):
            logits = finite_logits(source(x), "the source network")
            difference = max(difference, float((logits - collapsed(x)).abs().max()))
            to_target = max(to_target, float((logits - target(x)).abs().max()))
            correct += int((logits.argmax(1) == y).sum())
            images += len(y)
            bar.update(len(y))
        for x, y in data.test_batches(250, device, start=source_images):
            correct += int(
                (
                    finite_logits(collapsed(x), "the source network's collapsed form").argmax(1)
                    == y
                ).sum()
            )
            images += len(y)
            bar.update(len(y))
    return SourceEvaluation(100 * correct / images, images, source_images, difference, to_target)
