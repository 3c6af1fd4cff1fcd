"""Both networks on the same images: how far the source's outputs are from the model's."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from bnrecon.reconstruction.images import run_model
from bnrecon.reconstruction.report import OutputDifference
from bnrecon.reconstruction.tensors import tensors_in
from bnrecon.runtime.errors import Interrupted, RunError, first_line, shorten
from bnrecon.runtime.hardware import exact_float32
from bnrecon.runtime.torch_modes import callers_default_device

__all__ = ["NOTED", "compare"]


FAR = 0.1  # of the outputs' own size: farther off, something in the network was not seen


NOTED = 1e-3  # farther off than rounding usually leads


NUDGE = 1e-4  # of the images' size: about what rounding in float32 may come to


JUMP = (
    1e-2  # of the outputs' size: those that change by more when images are nudged are taken to jump
)


def compare(
    network: nn.Module, model: nn.Module, images: torch.Tensor, exact: bool
) -> tuple[OutputDifference | None, list[str]]:
    """Compare both networks' outputs on up to 64 images.

    Args:
        network: the source network.
        model: the target.
        images: (N, C, H, W).
        exact: every layer has converged, so that the outputs must be close.

    Returns:
        The difference, and notes about it. Outputs that are random, or that jump, tell nothing: the
        difference is ``None`` then.

    Raises:
        RunError: the source network fails or overflows, its outputs are of other shapes, or far off
            with ``exact``; where the model's are all 0 there is no scale, and a note instead.

    >>> compare(nn.ReLU(), nn.ReLU6(), torch.ones(3, 2), exact=True)
    (OutputDifference(largest=0.0, size=1.0, images=3), [])
    """
    images = images[:64]
    with torch.no_grad(), exact_float32():
        theirs, ours = (
            _numbers(run_model(model, images.clone())),
            _numbers(_source_output(network, images.clone())),
        )
        if not theirs:
            return None, ["outputs were not compared: the model puts out no floating-point tensors"]
        found = OutputDifference(_gap(ours, theirs), _size(theirs), len(images))
        if found.largest <= NOTED * found.size:
            return found, []
        if reason := _unsteady(model, images, theirs, found):
            return None, [f"outputs were not compared: {reason}"]
    if _finite(theirs) and not _finite(ours):
        raise RunError(
            "the source network's outputs are not finite, the model's are: intermediate numbers "
            "overflow; "
            "use model.double(), or images and weights of a usual size"
        )
    if _shapes(ours) != _shapes(theirs):
        raise RunError(
            f"outputs are of shape {_shape_text(ours)} where the model's are "
            f"{_shape_text(theirs)}: their shape depends on "
            "their values, or on something that a replaced layer does not give"
        )
    if not exact:
        return found, []
    seen = (
        f"every layer is rebuilt, and yet outputs differ by {found.largest:.1e} where they are "
        f"up to {found.size:.1e}: "
        "the model computes something from its layers that a replaced layer does not give"
    )
    if 0 < FAR * found.size < found.largest:
        raise RunError(seen)
    return found, [f"{seen}, or rounding adds up"]


def _source_output(network: nn.Module, images: torch.Tensor) -> Any:
    """The source network's output; the model's own code may ask its layers for what these lack."""
    try:
        with callers_default_device():
            return network(images)
    except (Interrupted, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise RunError(
            f"every layer is rebuilt, but the source network does not run ({type(error).__name__}: "
            f"{first_line(error)}): "
            "the model's own code asks a replaced layer for something that it does not have"
        ) from error


def _unsteady(
    model: nn.Module, images: torch.Tensor, theirs: list[torch.Tensor], found: OutputDifference
) -> str | None:
    """Why a difference means nothing, where the model's own outputs differ as much."""
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0)).to(images)
    nudged = images + NUDGE * images.abs().max() * noise
    for given, when, least in (
        (images.clone(), "from one run to the next", 0.0),
        (nudged, f"when its images change by {NUDGE:.0e} of their size", JUMP * found.size),
    ):
        others = _numbers(run_model(model, given))
        if _shapes(others) != _shapes(theirs):
            return f"the model's own are of another shape {when}"
        own = _gap(others, theirs)
        if own > least and 10 * own >= found.largest:
            return f"the model's own differ by {own:.1e} {when}"
    return None


def _numbers(output: Any) -> list[torch.Tensor]:
    return [part for part in tensors_in(output) if part.is_floating_point() and part.numel()]


def _shapes(parts: list[torch.Tensor]) -> list[tuple[int, ...]]:
    return [tuple(part.shape) for part in parts]


def _shape_text(parts: list[torch.Tensor]) -> str:
    return shorten([str(shape) for shape in _shapes(parts)])


def _finite(parts: list[torch.Tensor]) -> bool:
    return all(bool(part.isfinite().all()) for part in parts)


def _gap(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The largest difference; infinite for other shapes, while equal infinities do not differ."""
    if _shapes(ours) != _shapes(theirs):
        return math.inf
    largest = 0.0
    for a, b in zip(ours, theirs, strict=True):
        same = (a == b) | (a.isnan() & b.isnan())
        largest = max(
            largest,
            float(
                torch.where(same, 0.0, (a - b).abs())
                .nan_to_num(nan=math.inf, posinf=math.inf)
                .max()
            ),
        )
    return largest


def _size(parts: list[torch.Tensor]) -> float:
    """The largest number, infinities aside."""
    return max(float(part.abs().nan_to_num(nan=0, posinf=0).max()) for part in parts)
