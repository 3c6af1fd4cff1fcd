"""Draw a layer's features from a seed; check those of a user's distribution."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math

import torch

from bnrecon.features.pair import Features
from bnrecon.features.portable_random import Stream
from bnrecon.features.register import Distribution, distribution
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import SKIPS
from bnrecon.runtime.errors import UserError, require_choice
from bnrecon.runtime.options import checked_seed
from bnrecon.runtime.torch_modes import outside_torch_modes
from bnrecon.runtime.user_code import Registered, attribute_errors

logger = logging.getLogger(__name__)

_TRIED: set[Registered] = set()  # users' distributions that repeated a draw once


@outside_torch_modes
def draw(
    name: str,
    shape: LayerShape,
    width: int,
    seed: int,
    layer: int,
    strict: bool = False,
    skip: str = "none",
    storage: str = "memory",
) -> Features:
    """Draw the features of one layer.

    Args:
        name: a distribution in ``DISTRIBUTIONS``.
        shape: the target layer's.
        width: c1.
        seed: the network's, 0 to 2^63 - 1.
        layer: the layer's number; each has separate draws.
        strict: keep all-zero features of sparse distributions.
        skip: ``inner`` or ``outer`` adds a skip connection.
        storage: ``memory``, ``regenerate`` to generate parts at each use, or ``disk`` for a
            temporary file.

    Raises:
        UserError: the distribution is unknown or does not have this width or storage, or ``skip``
            is another word.
        RunError: the disk is full.

    >>> draw("he_normal", LayerShape(2, 3), width=6, seed=0, layer=0).first.shape
    torch.Size([6, 3])
    """
    kind = distribution(name)
    checked_seed(seed)
    require_choice("skip=", skip, SKIPS)
    if width < 1:
        raise UserError(f"width={width}: at least one feature is needed")
    kind.check_width(shape, width)
    kind.check_storage(storage)
    options = {"strict": strict} if kind.takes_strict else {}
    if kind.registered.user_defined:
        draw_once = _drawn_by_user if kind.registered in _TRIED else _tried
        drawn = draw_once(kind, shape, width, Stream(seed, layer), options)
    else:
        pair = kind.registered.function(shape, width, Stream(seed, layer), **options)
        drawn = pair if isinstance(pair, Features) else Features(shape, width, *pair)
    drawn = drawn.stored(storage)
    if skip == "none":
        return drawn
    # As in a ResNet: the identity if shapes agree, else a random 1x1 projection.
    if shape.outputs == shape.inputs:
        skip_weight = torch.eye(shape.outputs, dtype=torch.float32)
    else:
        size, std = (shape.outputs, shape.inputs), math.sqrt(2 / shape.inputs)
        skip_weight = Stream(seed, layer).normal(size, "skip", std)
    return dataclasses.replace(drawn, skip=skip, skip_weight=skip_weight)


def _tried(
    kind: Distribution, shape: LayerShape, width: int, stream: Stream, options: dict
) -> Features:
    """Draw from a user's distribution for the first time; warn if it ignores the seed.

    Raises:
        UserError: a second draw of the layer differs.
    """

    def digest(seed: int) -> str:  # keeps no draw: two might not fit in memory
        return _drawn_by_user(kind, shape, width, Stream(seed, stream.layer), options).digest()

    first, ignores_seed = digest(stream.seed), False
    with contextlib.suppress(UserError):  # features may be stored for the seeds in use only
        ignores_seed = digest(stream.seed - 1 if stream.seed else 1) == first
    drawn = _drawn_by_user(kind, shape, width, stream, options)
    if drawn.digest() != first:
        raise UserError(
            f"features {kind.name}: two draws of one layer differ; take all random numbers from "
            "the stream"
        )
    if ignores_seed:
        logger.warning(
            "features %s: two seeds draw the same weights, so that several seeds are one draw; "
            "take the random numbers from the stream",
            kind.name,
        )
    _TRIED.add(kind.registered)
    return drawn


def _drawn_by_user(
    kind: Distribution, shape: LayerShape, width: int, stream: Stream, options: dict
) -> Features:
    """Draw from a user's distribution; check shapes, dtype and values."""
    with attribute_errors(kind.registered):
        drawn = kind.registered.function(shape, width, stream, **options)
    if isinstance(drawn, Features):
        return drawn
    if not (
        isinstance(drawn, tuple | list)
        and len(drawn) == 2
        and all(isinstance(part, torch.Tensor) for part in drawn)
    ):
        raise UserError(
            f"features {kind.name}: it must return two tensors, A (c1, c0) and B (c2, c1, kh, kw)"
        )
    sizes = {"A": (width, shape.inputs), "B": (shape.outputs, width, *shape.kernel)}
    for (name, size), part in zip(sizes.items(), drawn, strict=True):
        if tuple(part.shape) != size:
            raise UserError(
                f"features {kind.name}: {name} is of shape {tuple(part.shape)}; "
                f"for this layer it must be {size}"
            )
        dense = part.layout == torch.strided and not part.is_meta
        if not (dense and part.is_floating_point()):
            received = part.dtype if dense else f"{part.layout}, {part.device}"
            raise UserError(
                f"features {kind.name}: {name} must hold floating-point numbers ({received} given)"
            )
    # A copy: the function may return the same buffer for every layer.
    first, second = (part.detach().to("cpu", torch.float32, copy=True) for part in drawn)
    for name, part in (("A", first), ("B", second)):
        if wrong := int((~part.isfinite()).sum()):
            raise UserError(
                f"features {kind.name}: {wrong} of {part.numel()} numbers of {name} are NaN, "
                "infinite or too large for float32"
            )
    return Features(shape, width, first, second)
