"""Check a library user's images, a tensor or batches, before a network sees them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from bnrecon.data.spec import IMAGE_KEYS
from bnrecon.reconstruction.refusal import dtype_name
from bnrecon.reconstruction.substitution import share_parameters
from bnrecon.runtime.errors import CLEAR_ERRORS, UserError, first_line, lacks_memory, shorten
from bnrecon.runtime.torch_modes import callers_default_device

END = object()  # marks the end of a user's batches


def checked_images(images: Any, model: nn.Module) -> tuple[torch.Tensor, Iterator[torch.Tensor]]:
    """The first batch of ``images``, and all batches, the first included, on the model's device.

    Empty batches are skipped.

    Args:
        images: a tensor (N, C, H, W) or of any shape that the model takes, or an iterable of such.
            Of pairs (images, labels), as from a DataLoader, the first part is taken; of mappings,
            ``pixel_values``, ``image``, ``images`` or ``img``.
        model: the model that will run them; its parameters must have the images' dtype.

    Raises:
        UserError: there is no image, a batch is not a tensor of the model's dtype, or the model
            does not take it.

    >>> first, batches = checked_images([(torch.zeros(2, 3), torch.zeros(2))], nn.Linear(3, 1))
    >>> first.shape, len(list(batches))
    (torch.Size([2, 3]), 1)
    """
    if isinstance(images, Mapping):
        images = [images]
    tensors = itertools.chain(model.parameters(), model.buffers())
    parameter = next((t for t in tensors if t.is_floating_point()), torch.empty(()))
    array = hasattr(images, "__array__")  # another library's array, not an iterable of batches
    iterable = isinstance(images, Iterable) and not isinstance(images, str | bytes)
    if not isinstance(images, torch.Tensor) and (array or not iterable):
        raise UserError(
            f"images={_described(images)}: give a tensor, or an iterable of tensors such as a "
            "DataLoader"
        )
    if isinstance(images, tuple) and len(images) == 2 and _are_labels(images[1]):
        raise UserError(
            "images: a tuple is read as two batches, and the second has labels; give "
            "images=[(images, labels)], or the images alone"
        )
    batches = (_check_batch(batch, parameter) for batch in _each_batch(images))
    checked = (batch for batch in batches if len(batch))
    first = next(checked, None)
    if first is None:
        raise UserError("images: there is no image in it; at least one is needed")
    with torch.no_grad():
        run_model(share_parameters(model), first[:2].clone())
    return first, itertools.chain([first], checked)


def _are_labels(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.ndim == 1 or not value.is_floating_point())


def run_model(model: nn.Module, images: torch.Tensor) -> Any:
    """Return the model's output; raise ``UserError`` if its code does not take these images.

    >>> run_model(nn.Linear(3, 1), torch.zeros(2, 3)).shape
    torch.Size([2, 1])
    """
    try:
        with callers_default_device():
            return model(images)
    except CLEAR_ERRORS:
        raise
    except Exception as error:  # the user's forward can raise anything
        if lacks_memory(error):
            raise
        raise UserError(
            f"images of shape {tuple(images.shape[1:])}: the model does not take them "
            f"({first_line(error)}); the first dimension of a batch counts its images"
        ) from error


def _each_batch(images: Any) -> Iterator[Any]:
    try:
        with callers_default_device():
            batches = iter([images] if isinstance(images, torch.Tensor) else images)
        while True:
            with callers_default_device():  # a loader may draw from a generator there
                batch = next(batches, END)
            if batch is END:
                return
            yield batch
    except CLEAR_ERRORS:
        raise
    except Exception as error:  # the user's loader
        if lacks_memory(error):
            raise
        what = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"images: iterating over them raised an error ({what})") from error


def _check_batch(batch: Any, like: torch.Tensor) -> torch.Tensor:
    """Return one batch on the model's device, without labels."""
    if isinstance(batch, Mapping):
        key = next((name for name in IMAGE_KEYS if name in batch), None)
        if key is None:
            keys, required = shorten([*map(str, batch)]), " or ".join(IMAGE_KEYS)
            raise UserError(f"images: a batch is a mapping of {keys}; it must have {required}")
        batch = batch[key]
    elif isinstance(batch, list | tuple) and batch:
        batch = batch[0]
    if not isinstance(batch, torch.Tensor) or batch.ndim == 0:
        raise UserError(
            f"images: a batch is {_described(batch)}; it must be a tensor of images, "
            "(N, C, H, W) for a convolution"
        )
    if batch.dtype != like.dtype:
        dtype = dtype_name(like.dtype)
        tokens = "" if batch.is_floating_point() else "; tokens cannot be compared: leave them out"
        raise UserError(
            f"images are {dtype_name(batch.dtype)}, the model is {dtype}: give them as {dtype}, "
            f"normalized as the model needs them{tokens}"
        )
    if batch.is_nested or batch.layout != torch.strided:
        raise UserError("images: they are sparse or nested; give them as a tensor of one shape")
    if batch.is_meta:
        raise UserError("images: they are on the meta device and hold no numbers")
    if not bool(batch.isfinite().all()):
        raise UserError("images: some of their numbers are not finite")
    return batch.to(like.device)


def _described(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
