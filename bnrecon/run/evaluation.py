"""Test a source network: the real one on some test images, its collapsed form on the others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from tqdm import tqdm

from bnrecon.data import Images
from bnrecon.reporting.result import Predictions
from bnrecon.runtime.hardware import exact_float32
from bnrecon.runtime.malloc import keep_freed_memory
from bnrecon.targets.accuracy import finite_logits, image_bar

SOURCE_BATCH = 64  # batch size of the real source network
FEWEST = 64  # images of the real source that the other images' reserve needs


class SourceEvaluation(NamedTuple):
    """Accuracy of a source network, how it was measured, and how its predictions compare."""

    accuracy: float  # in percent, on all ``images`` test images
    images: int  # number of test images
    # How many of them went through the real source network; the others went through its collapsed
    # form
    source_images: int
    largest_logit_difference: float  # between those two, over the images of the real source
    largest_difference_to_target: float  # between logits of source and target, over the same images
    largest_logit: float  # absolute value, of the target, over the same images
    predictions: Predictions  # classes of source and target compared, on all test images


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

    If not all of them can go through the real source, it gets those on which a small difference
    matters most: where the target's two largest logits are closest. The others' distance from
    another prediction is measured in units of the largest logit difference on those images; fewer
    than ``FEWEST`` images are too few for that, and the others' reserve is 0.

    ``collapsed`` computes the function of ``source``, with each layer's two convolutions and scale
    merged into one. All images go through it and ``target``, ``source_images`` through ``source``.
    Without a ``description`` there is no progress bar.

    Raises:
        RunError: logits are not finite.
    """
    images = data.sizes[1]
    tested = min(source_images, images)
    with (
        image_bar(images + tested, description) as bar,
        torch.inference_mode(),
        exact_float32(),
        keep_freed_memory(),
    ):
        target_logits, collapsed_logits, labels = _logits(target, collapsed, data, device, bar)
        margins = -target_logits.topk(2).values.diff()[:, 0]
        hardest = torch.zeros(images, dtype=torch.bool)
        hardest[margins.argsort(stable=True)[:tested]] = True
        logits = []
        for x in _batches_of(hardest, data, device):
            logits.append(finite_logits(source(x), "the source network").cpu())
            bar.update(len(x))
        source_logits = torch.cat(logits)
    classes = collapsed_logits.index_put((hardest,), source_logits).argmax(1)
    to_target = _largest(source_logits - target_logits[hardest])
    reserve = _reserve(margins[~hardest], tested, to_target)
    predictions = Predictions.compare(target_logits.argmax(1), classes, labels, tested, reserve)
    return SourceEvaluation(
        100 * int((classes == labels).sum()) / images,
        images,
        tested,
        _largest(source_logits - collapsed_logits[hardest]),
        to_target,
        _largest(target_logits[hardest]),
        predictions,
    )


def _logits(
    target: nn.Module, collapsed: nn.Module, data: Images, device: torch.device, bar: tqdm
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits of the target and the collapsed source on all test images, and the images' classes."""
    expected, merged, labels = [], [], []
    for x, y in data.test_batches(250, device):
        expected.append(finite_logits(target(x), "the target").cpu())
        merged.append(finite_logits(collapsed(x), "the source network's collapsed form").cpu())
        labels.append(y.cpu())
        bar.update(len(y))
    return torch.cat(expected), torch.cat(merged), torch.cat(labels)


def _batches_of(chosen: torch.Tensor, data: Images, device: torch.device) -> Iterator[torch.Tensor]:
    """The chosen test images in batches of at least ``SOURCE_BATCH``; the last may be smaller."""
    waiting, first = torch.empty(0), 0
    for x, _ in data.test_batches(SOURCE_BATCH, device):
        picked = x[chosen[first : first + len(x)].to(device)]
        waiting = torch.cat([waiting, picked]) if len(waiting) else picked
        first += len(x)
        if len(waiting) >= SOURCE_BATCH:
            yield waiting
            waiting = waiting[:0]
    if len(waiting):
        yield waiting


def _largest(difference: torch.Tensor) -> float:
    return float(difference.abs().max())


def _reserve(margins: torch.Tensor, tested: int, largest: float) -> float | None:
    """Half the smallest margin of the images not tested, in units of the largest difference."""
    if not len(margins):
        return None
    if tested < FEWEST:
        return 0.0
    return float(margins.min()) / 2 / largest if largest else None
