"""A source network on test images: the real one on some of them, its collapsed form on others."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from bnrecon.data import Images
from bnrecon.reporting.result import Predictions
from bnrecon.runtime.hardware import exact_float32
from bnrecon.targets.accuracy import finite_logits, image_bar

__all__ = ["SourceEvaluation", "evaluate_source"]


@dataclass(frozen=True)
class SourceEvaluation:
    """Accuracy of a source network, how it was measured, and how its predictions compare.

    Args:
        percent: accuracy on all ``images`` test images.
        images: how many were tested.
        source_images: how many of them, the first ones, went through the real source network; the
            others went through its collapsed form.
        largest_logit_difference: between those two, over the first images.
        largest_difference_to_target: between the logits of source and target, over the same.
        predictions: the classes of source and target compared, on all test images.
    """

    percent: float
    images: int
    source_images: int
    largest_logit_difference: float
    largest_difference_to_target: float
    predictions: Predictions


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
        source_images: how many images go through ``source``, the first ones; the others go through
            ``collapsed``. All go through ``target``.
        description: what a progress bar is labelled with; no bar without it.

    Raises:
        RunError: logits are not finite.
    """
    found = _Counts()
    difference = to_target = 0.0
    source_images = min(source_images, data.sizes[1])
    with image_bar(data.sizes[1], description) as bar, torch.inference_mode(), exact_float32():
        for x, y in data.test_batches(64, device, limit=source_images):
            logits = finite_logits(source(x), "the source network")
            wanted = target(x)
            difference = max(difference, float((logits - collapsed(x)).abs().max()))
            to_target = max(to_target, float((logits - wanted).abs().max()))
            found.add(logits.argmax(1), wanted.argmax(1), y)
            bar.update(len(y))
        for x, y in data.test_batches(250, device, start=source_images):
            logits = finite_logits(collapsed(x), "the source network's collapsed form")
            found.add(logits.argmax(1), target(x).argmax(1), y)
            bar.update(len(y))
    return SourceEvaluation(
        100 * found.correct / found.images,
        found.images,
        source_images,
        difference,
        to_target,
        found.predictions(),
    )


class _Counts:
    """Counts of images, batch by batch."""

    def __init__(self) -> None:
        self.images = self.correct = self.differ = self.only_source = self.only_target = 0

    def add(self, source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor) -> None:
        """Count a batch: predicted classes of both networks, and the right ones."""
        source_right, target_right = source == labels, target == labels
        self.images += len(labels)
        self.correct += int(source_right.sum())
        self.differ += int((source != target).sum())
        self.only_source += int((source_right & ~target_right).sum())
        self.only_target += int((target_right & ~source_right).sum())

    def predictions(self) -> Predictions:
        """What was counted of both networks."""
        return Predictions(self.images, self.differ, self.only_target, self.only_source)
