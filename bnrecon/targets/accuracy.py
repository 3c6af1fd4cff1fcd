"""Test accuracy of a network, in full float32."""

from __future__ import annotations

import torch
from torch import nn
from tqdm import tqdm

from bnrecon.data import Images
from bnrecon.runtime.errors import RunError
from bnrecon.runtime.hardware import exact_float32
from bnrecon.runtime.malloc import keep_freed_memory


def measure_accuracy(
    network: nn.Module, data: Images, device: torch.device, description: str | None = None
) -> float:
    """Accuracy in percent over all test images, in eval mode and float32 with TF32 off.

    The network maps (N, C, H, W) to logits (N, classes); ``description`` titles a progress bar.

    Raises:
        RunError: a logit is not finite: the largest of NaNs is no prediction.
    """
    network.eval()
    images, correct = data.sizes[1], 0
    with (
        image_bar(images, description) as bar,
        torch.inference_mode(),
        exact_float32(),
        keep_freed_memory(),
    ):
        for x, y in data.test_batches(250, device):
            correct += int((finite_logits(network(x), "the network").argmax(1) == y).sum())
            bar.update(len(y))
    return 100 * correct / images


def finite_logits(logits: torch.Tensor, whose: str) -> torch.Tensor:
    """Return the logits; raise ``RunError`` naming the network if one is not finite."""
    if not bool(torch.isfinite(logits).all()):
        raise RunError(f"{whose} gives logits that are not finite on test images")
    return logits


def image_bar(total: int, description: str | None) -> tqdm:
    """A progress bar over images, hidden without a description."""
    disable = None if description else True
    return tqdm(total=total, desc=description, unit="img", disable=disable, leave=False)
