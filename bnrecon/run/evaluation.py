"""Test accuracy of a source network: the real one on some images, its collapsed form on others."""

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
    """Accuracy of a source network, and how it was measured.

    Args:
        percent: accuracy on all ``images`` test images.
        images: how many were tested.
        source_images: how many of them, the first ones, went through the real source network; the
            others went through its collapsed form.
        largest_logit_difference: between those two, over the first images.
        largest_difference_to_target: between the logits of source and target, over the same.
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
    """Test a source network on all test images.

    Args:
        source: the real source network.
        collapsed: the same function with every layer's two convolutions and scale as one.
        target: the network that was reconstructed.
        data: the images.
        device: where the networks are.
        source_images: how many images go through ``source``, the others through ``collapsed``.
        description: what a progress bar is labelled with; no bar without it.

    Raises:
        RunError: logits are not finite.
    """
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
            logits = finite_logits(collapsed(x), "the source network's collapsed form")
            correct += int((logits.argmax(1) == y).sum())
            images += len(y)
            bar.update(len(y))
    return SourceEvaluation(100 * correct / images, images, source_images, difference, to_target)
