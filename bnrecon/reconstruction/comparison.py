"""Compare the outputs of the source network and the model on the same images."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from bnrecon.reconstruction.images import run_model
from bnrecon.reconstruction.replaced_layer import ReplacedLayer
from bnrecon.reconstruction.report import NOTED, OutputDifference
from bnrecon.reconstruction.substitution import leaves, share_parameters
from bnrecon.runtime.errors import Interrupted, RunError, first_line, lacks_memory, shorten
from bnrecon.runtime.hardware import exact_float32
from bnrecon.runtime.malloc import keep_freed_memory
from bnrecon.runtime.torch_modes import callers_default_device, one_thread_at_a_time

FAR = 0.1  # of an output's spread: a larger difference is an error
NUDGE = 1e-4  # of the images' size: about the effect of float32 rounding
JUMP = 1e-2  # of the spread: a larger change of nudged images' outputs is a jump
FLAT = 1e-2  # of a tensor's largest number: the smallest spread
UNCOMPARED = "outputs were not compared: "  # begins a note
RANDOM = "from one run to the next (F.dropout without training=self.training?)"


@one_thread_at_a_time
def compare(
    network: nn.Module, model: nn.Module, images: torch.Tensor
) -> tuple[OutputDifference | None, list[str]]:
    """Compare both networks' outputs on up to 64 images, tensor by tensor.

    Each tensor, and each of its channels, is compared relative to its spread, the largest distance
    from the mean: large outputs must not hide errors of small ones. Copies of both networks run.

    Returns:
        The largest difference of any tensor, and notes. The difference is ``None`` if outputs are
        random or jump.

    Raises:
        RunError: the source network fails, or its outputs have other shapes or are not finite where
            the model's are.

    >>> compare(nn.ReLU(), nn.ReLU6(), torch.tensor([[0.0], [2.0]]))
    (OutputDifference(largest=0.0, size=1.0, images=2, output=0, outputs=1), [])
    """
    images, notes = images[:64], []
    running, modules = share_parameters(model), network.named_modules()
    layers = {name: module for name, module in modules if isinstance(module, ReplacedLayer)}
    network = share_parameters(network, layers.values())
    with torch.no_grad(), exact_float32(), keep_freed_memory():
        output = run_model(running, images.clone())
        theirs = _numbers(output)
        with _count_calls(layers) as ran:
            ours = _numbers(_source_output(network, images.clone()))
        others = (part for part in leaves(output) if not isinstance(part, str | None))
        if names := {type(part).__name__ for part in others if _as_tensor(part) is None}:
            notes.append(f"not compared: outputs of type {shorten(sorted(names))}")
        if missed := [name for name, count in ran.items() if not count]:
            notes.append(f"not compared, as these images do not reach them: {shorten(missed)}")
        if not theirs:
            return None, [f"{UNCOMPARED}the model returns no tensors", *notes]
        difference = _difference(ours, theirs, len(images))
        if difference.largest == 0 and not any(map(_has_two_values, theirs)):
            why = "all numbers of each output are the same, or not finite"
            return None, [f"{UNCOMPARED}{why}", *notes]
        if difference.relative <= NOTED:
            return difference, notes
        if reason := _unsteady(running, images, theirs, difference):
            return None, [f"{UNCOMPARED}{reason}", *notes]
    if _shapes(ours) != _shapes(theirs):
        shapes = [shorten(list(map(str, _shapes(parts)))) for parts in (ours, theirs)]
        raise RunError(
            f"outputs are of shape {shapes[0]} where the model's are {shapes[1]}: their shape "
            "depends on their values, or on something that a replaced layer does not have"
        )
    finite = [all(bool(part.isfinite().all()) for part in parts) for parts in (ours, theirs)]
    if finite == [False, True]:
        raise RunError(
            "the source network's outputs are not finite, the model's are; try model.double() on "
            "these images"
        )
    return difference, notes


def explain_difference(
    difference: OutputDifference | None, why: str, accepted: bool = False
) -> list[str]:
    """Return a note on outputs that are off by more than rounding usually is.

    ``why`` is the likely cause. Raises ``RunError`` if they are off by more than a tenth of their
    spread, unless ``accepted``.
    """
    if difference is None or difference.relative <= NOTED:
        return []
    which = "outputs differ"
    if difference.outputs > 1:
        which = f"output {difference.output + 1} of {difference.outputs} differs"
    text = f"{which} by {difference.largest:.1e}, spread over {difference.size:.1e}: {why}"
    if difference.relative > FAR and difference.size > 0 and not accepted:
        raise RunError(text)
    return [text]


@contextlib.contextmanager
def _count_calls(layers: Mapping[str, nn.Module]) -> Iterator[Counter[str]]:
    calls = Counter(dict.fromkeys(layers, 0))
    with contextlib.ExitStack() as hooks:
        for name, module in layers.items():
            hook = module.register_forward_hook(lambda *_, name=name: calls.update([name]))
            hooks.enter_context(hook)
        yield calls


def _source_output(network: nn.Module, images: torch.Tensor) -> Any:
    """Run the source network; its layers may lack what the model's code asks them for."""
    try:
        with callers_default_device():
            return network(images)
    except Interrupted:
        raise
    except Exception as error:
        if lacks_memory(error):
            raise
        what = f"{type(error).__name__}: {first_line(error)}"
        raise RunError(
            f"with its layers replaced the network does not run ({what}): the model's own code "
            "needs something that a replaced layer does not have"
        ) from error


def _unsteady(
    model: nn.Module, images: torch.Tensor, theirs: list[torch.Tensor], difference: OutputDifference
) -> str | None:
    """Say why a difference means nothing, if the model's outputs themselves differ as much."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(images.shape, dtype=torch.float32, generator=generator)
    nudged = images + NUDGE * images.abs().max() * noise.to(images)
    for inputs, when, least in (
        (images.clone(), RANDOM, 0.0),
        (nudged, f"when its images change by {NUDGE:.0e} of their size", JUMP),
    ):
        others = _numbers(run_model(model, inputs))
        if _shapes(others) != _shapes(theirs):
            return f"the model's own are of another shape {when}"
        change = _difference(others, theirs, len(images))
        if change.relative > least and 10 * change.relative >= difference.relative:
            return f"the model's own differ by {change.largest:.1e} {when}"
    return None


def _difference(
    ours: list[torch.Tensor], theirs: list[torch.Tensor], images: int
) -> OutputDifference:
    """The difference of the tensor that is farthest off relative to its spread."""
    if _shapes(ours) != _shapes(theirs):
        return OutputDifference(math.inf, 1.0, images)
    differences = [
        OutputDifference(*pair, images, number, len(theirs))
        for number, (a, b) in enumerate(zip(ours, theirs, strict=True))
        for pair in _gaps(a, b)
    ]
    return max(differences, key=lambda difference: difference.relative)


def _gaps(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[float, float]]:
    """Yield the largest difference and the spread of all numbers and of single channels."""
    same = (a == b) | (a.isnan() & b.isnan())
    if not a.is_floating_point():  # for integers, such as classes, the share that differs
        yield float((~same).double().mean()), 1.0
        return
    gaps = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    finite = torch.where(b.isfinite(), b, b[b.isfinite()].mean() if b.isfinite().any() else 0)
    least = FLAT * float(finite.abs().max())
    yield float(gaps.max()), max(float((finite - finite.mean()).abs().max()), least)
    for dim in {1, b.ndim - 1} if b.ndim > 1 else ():  # a tensor may hold boxes and scores
        others = [other for other in range(b.ndim) if other != dim]
        spread = (finite - finite.mean(others, keepdim=True)).abs().amax(others).clamp_min(least)
        largest = gaps.amax(others)
        worst = int((largest / spread.clamp_min(1e-300)).argmax())
        yield float(largest[worst]), float(spread[worst])


def _has_two_values(values: torch.Tensor) -> bool:
    """Whether a tensor has two different numbers; a constant is too easy to match."""
    finite = values[values.isfinite()]
    return bool(finite.numel() and (finite != finite[0]).any())


def _numbers(output: Any) -> list[torch.Tensor]:
    parts = [part for part in map(_as_tensor, leaves(output)) if part is not None and part.numel()]
    return [torch.view_as_real(part) if part.is_complex() else part for part in parts]


def _as_tensor(part: Any) -> torch.Tensor | None:
    """A tensor, an array or a number as a tensor; ``None`` for what holds no numbers."""
    if isinstance(part, torch.Tensor):
        return part.to_dense()
    kinds = (np.ndarray, np.generic, complex, float, int)
    array = np.asarray(part if isinstance(part, kinds) else "")
    return torch.as_tensor(array) if array.dtype.kind in "biufc" else None


def _shapes(parts: list[torch.Tensor]) -> list[tuple[int, ...]]:
    return [tuple(part.shape) for part in parts]
