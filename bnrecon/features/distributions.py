"""Every distribution of frozen features, convolutional and linear."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from bnrecon.features.pair import Features, identity_weights
from bnrecon.features.portable_random import Draws, Stream
from bnrecon.features.shapes import LayerShape
from bnrecon.runtime.hardware import torch_threads


def he_normal(shape: LayerShape, width: int, stream: Stream) -> Features:
    """Normal entries of variance 2 / fan-in (He et al. 2015)."""
    return _independent(
        shape, width, lambda fan_in: partial(stream.normal, deviation=math.sqrt(2 / fan_in))
    )


def he_uniform(shape: LayerShape, width: int, stream: Stream) -> Features:
    """Entries uniform on ±sqrt(6 / fan-in) (He et al. 2015)."""
    return _independent(
        shape, width, lambda fan_in: partial(stream.uniform, bound=math.sqrt(6 / fan_in))
    )


def _independent(shape: LayerShape, width: int, entries: Callable[[int], partial]) -> Features:
    """Independent entries by fan-in: each feature's can be drawn alone."""
    first = partial(entries(shape.inputs), word="first")
    second = partial(entries(width * shape.taps), word="second")
    sizes = (1, width, shape.inputs), (shape.outputs, width, shape.taps)
    return Features(shape, width, draws=(Draws(sizes[0], first), Draws(sizes[1], second)))


def orthogonal(shape: LayerShape, width: int, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """Orthonormal columns of A and rows of B, as ``torch.nn.init.orthogonal_`` draws them."""
    first = orthonormal_columns(stream.normal((width, shape.inputs), "first"))
    flat = stream.normal((shape.outputs, width * shape.taps), "second")
    second = orthonormal_columns(flat.T).T
    return first, second.reshape(shape.outputs, width, *shape.kernel).contiguous()


def orthonormal_columns(normal: torch.Tensor) -> torch.Tensor:
    """Haar-distributed orthonormal columns (rows, if there are fewer), by QR with R's signs.

    LAPACK's last bits depend on the number of threads, so it gets one: processes of a run agree.
    """
    if normal.shape[0] < normal.shape[1]:
        return orthonormal_columns(normal.T).T
    with torch_threads(1):
        q, r = torch.linalg.qr(normal)
    return q * r.diagonal().sign()


def sign(shape: LayerShape, width: int, stream: Stream) -> Features:
    """Entries ±sqrt(2 / fan-in), one random bit each: any part of them can be generated alone.

    Up to sign there are 2^(c0 + c2 kh kw - 2) different features, so in the smallest layers some
    repeat and more are needed.

    >>> from bnrecon.features import draw
    >>> draw("sign", LayerShape(3, 2), width=2, seed=0, layer=0).weights()[0].abs()
    tensor([[1., 1.],
            [1., 1.]])
    """
    return Features(shape, width, pattern="sign", stream=stream)


def sparse_he_normal(shape: LayerShape, width: int, stream: Stream, strict: bool) -> Features:
    """he_normal with each entry set to 0 with probability 1/2 (Burkholz 2024, Sect. 3.2)."""
    return _masked(shape, width, stream, strict, stream.normal)


def er_sign(shape: LayerShape, width: int, stream: Stream, strict: bool) -> Features:
    """Entries ±sqrt(2 / fan-in), half of them set to 0 (Random features, Sect. 2.1)."""

    def signs(size: tuple[int, int], word: str, deviation: float) -> torch.Tensor:
        return deviation * (2 * stream.mask(size, word).float() - 1)

    return _masked(shape, width, stream, strict, signs)


def _masked(
    shape: LayerShape, width: int, stream: Stream, strict: bool, values: Callable[..., torch.Tensor]
) -> Features:
    """Entries ``values(size, word, deviation)``, each set to 0 with probability 1/2.

    A fraction 2^-c0 of A's rows is all-zero: 1/8 for an RGB image. Such a feature lowers the rank
    of M, so it is drawn again and counted, unless ``strict``.
    """

    def masked(rows: int, columns: int, fan_in: int, word: str) -> torch.Tensor:
        size = rows, columns
        return values(size, word, math.sqrt(2 / fan_in)) * stream.mask(size, f"{word} mask")

    def live(columns: int, fan_in: int, word: str) -> tuple[torch.Tensor, int]:
        rows, redrawn = masked(width, columns, fan_in, word), 0
        while not strict and len(dead := (rows == 0).all(1).nonzero()[:, 0]):
            redrawn += len(dead)
            rows[dead] = masked(len(dead), columns, fan_in, f"{word} again after {redrawn}")
        return rows, redrawn

    first, redrawn_first = live(shape.inputs, shape.inputs, "first")
    by_feature, redrawn_second = live(shape.outputs * shape.taps, width * shape.taps, "second")
    second = by_feature.reshape(width, shape.outputs, *shape.kernel).transpose(0, 1).contiguous()
    return Features(shape, width, first, second, redrawn_first + redrawn_second)


def id_cond(shape: LayerShape, width: int, _stream: Stream) -> Features:
    """One feature for each entry of the target, so that M = I (Random features, Eq. 2).

    At the minimum width n - c2 + 1 all outputs share the feature of the first input and tap (Eq.
    3). Nothing is random.
    """
    return Features(shape, width, pattern="identity" if width == shape.equations else "shared")


def sparse_id_cond(
    shape: LayerShape, width: int, stream: Stream
) -> tuple[torch.Tensor, torch.Tensor]:
    """c1 random features of id_cond's n: a mask of density c1/n (Random features, Theorem 4.2).

    The number of features is fixed, not drawn, so that a run knows its width beforehand; all masks
    of this size are equally likely.

    >>> from bnrecon.features import draw
    >>> draw("sparse_id_cond", LayerShape(5, 4), width=4, seed=0, layer=0).weights()[0].sum()
    tensor(4.)
    """
    return identity_weights(shape, stream.order(shape.equations, "kept")[:width].sort().values)


def ortho_cond(shape: LayerShape, width: int, stream: Stream) -> Features:
    """M = U2 ⊗ U1, Haar-random orthogonal U2 (c2 kh kw) and U1 (c0) (Random features, Sect. 3)."""
    u1 = orthonormal_columns(stream.normal((shape.inputs, shape.inputs), "first"))
    rows = shape.outputs * shape.taps
    u2 = orthonormal_columns(stream.normal((rows, rows), "second"))
    return Features(shape, width, pattern="kronecker", factors=(u2, u1))
