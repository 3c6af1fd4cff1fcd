"""The frozen pair of weights of one target layer, stored or formed from a pattern."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch

from bnrecon.features.portable_random import Draws, Stream
from bnrecon.features.shapes import LayerShape
from bnrecon.operators.mapped import mapped_tensor
from bnrecon.operators.rows import Rows, TableRows
from bnrecon.operators.signs import GROUP, SignMatrix
from bnrecon.runtime.digests import parts_digest, tensor_digest
from bnrecon.runtime.torch_modes import CPU

# Of features that are generated or read at once if they are not in memory.
RUN_BYTES = {"cpu": 2**23, "cuda": 2**28}
HASHED_BYTES = 2**25  # of bits in memory at once: 32 blocks, each drawn by a thread


@dataclass(frozen=True)
class Features:
    """The frozen pair for one target layer.

    Features that follow a ``pattern`` store neither A nor B; ``weights`` forms them on demand:
    ``"identity"`` (id_cond of maximum width, M = I), ``"shared"`` (id_cond of minimum width),
    ``"kronecker"`` (ortho_cond, from its ``factors`` U2 and U1) and ``"sign"`` (from ``stream``).
    Those whose ``storage`` is not ``"memory"`` are never in memory as a whole: ``first_parts``,
    ``second_parts`` and ``part`` give some features at a time, ``by_rows`` the form for products.
    """

    shape: LayerShape  # of the target layer
    width: int  # c1
    first: torch.Tensor | None = None  # A (c1, c0), float32
    second: torch.Tensor | None = None  # B (c2, c1, kh, kw), float32
    redrawn: int = 0  # how many all-zero features were drawn again
    pattern: str | None = None  # see above; ``None`` for stored weights
    factors: tuple[torch.Tensor, ...] = ()  # U2 (c2 kh kw, c2 kh kw) and U1 (c0, c0)
    skip: str = "none"  # ``inner`` or ``outer`` for a frozen skip connection
    # S (c2, c0), at the kernel's centre: the identity where c2 = c0, else random
    skip_weight: torch.Tensor | None = None
    stream: Stream | None = None  # what the bits of ``"sign"`` are drawn from
    # What independent entries of A (1, c1, c0) and B (c2, c1, kh kw) are drawn from
    draws: tuple[Draws, Draws] | None = None
    # ``"memory"``; ``"regenerate"`` for features generated at each use; ``"disk"`` for ``first``
    # and ``second`` in a temporary file
    storage: str = "memory"

    def __deepcopy__(self, _memo: dict) -> Features:
        """Return these features: a copied network would load a file's content into memory."""
        return self

    @property
    def identity(self) -> bool:
        """Whether M is the identity."""
        return self.pattern == "identity"

    @property
    def in_memory(self) -> bool:
        """Whether the whole weights may be in memory."""
        return self.storage == "memory"

    def weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A (c1, c0) and B (c2, c1, kh, kw), formed from the pattern if not stored."""
        if self.first is not None and self.second is not None:
            return self.first, self.second
        if self.pattern == "kronecker":
            return _kronecker_weights(self.shape, *self.factors)
        if self.stream is not None or self.draws is not None:
            return self.part(slice(None), torch.float32, CPU)
        first, second = identity_weights(self.shape)
        if self.pattern == "shared":
            private = shared_feature_rows(self.shape)
            first, second = first[private], second[:, private].contiguous()
            second[:, 0].flatten(1)[:, 0] = 1  # the first tap
        return first, second

    def by_rows(self) -> tuple[Rows, Rows]:
        """A (c1, c0) and B^T (c1, c2 taps), readable by rows."""
        if self.first is not None and self.second is not None:
            return _rows_on_disk(self.first[None]), _rows_on_disk(self.second.flatten(2))
        if self.draws is not None:
            first, second = self.draws
            return (
                TableRows(self.width, self.shape.inputs, first.part),
                TableRows(self.width, self.shape.outputs * self.shape.taps, second.part),
            )
        if self.stream is None:
            raise ValueError(f"features of pattern {self.pattern} cannot be read by rows")
        return _sign_factors(self.shape, self.width, self.stream)

    def stored(self, storage: str) -> Features:
        """The same features in memory, in a file that is written by parts, or in neither."""
        if storage == "memory":
            if self.draws is None:
                return self
            first, second = self.weights()
            return dataclasses.replace(self, first=first, second=second, draws=None)
        if storage == "regenerate":
            return dataclasses.replace(self, storage=storage)
        source = self if self.first is not None else self.stored("regenerate")
        first = mapped_tensor((self.width, self.shape.inputs), torch.float32)
        second = mapped_tensor((self.shape.outputs, self.width, *self.shape.kernel), torch.float32)
        for part, values in source.first_parts():
            first[part] = values
        for part, values in source.second_parts():
            second[:, part] = values
        return dataclasses.replace(self, first=first, second=second, draws=None, storage=storage)

    def part(
        self, part: slice, dtype: torch.dtype, device: torch.device
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A (count, c0) and B (c2, count, kh, kw) of some features."""
        first, second = self.by_rows()
        return first.values(part, dtype, device), self._kernels(second, part, dtype, device)

    def first_parts(self, device: torch.device = CPU) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield A (count, c0) by runs of features, and their indices; all at once if stored."""
        return self._parts(0, device)

    def second_parts(self, device: torch.device = CPU) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield B (c2, count, kh, kw) by runs of features, likewise."""
        return self._parts(1, device)

    def _parts(self, number: int, device: torch.device) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield a factor by runs of features of about ``RUN_BYTES`` in float32."""
        if self.in_memory:
            yield slice(0, self.width), self.weights()[number].to(device)
            return
        factor = self.by_rows()[number]
        values = partial(self._kernels, factor) if number else factor.values
        count = GROUP * max(1, RUN_BYTES[device.type] // 4 // (GROUP * factor.columns))
        for start in range(0, self.width, count):
            part = slice(start, min(start + count, self.width))
            yield part, values(part, torch.float32, device)

    def _kernels(
        self, second: Rows, part: slice, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Some rows of B^T (count, c2 taps) as kernels (c2, count, kh, kw)."""
        shape = self.shape
        if isinstance(second, TableRows):
            kernels = second.table(part).to(device, dtype)
        else:
            rows = second.values(part, dtype, device)
            table = rows.reshape(len(rows), shape.outputs, shape.taps)
            kernels = table.transpose(0, 1).contiguous()
        return kernels.reshape(shape.outputs, -1, *shape.kernel)

    def digest(self) -> str:
        """SHA-256 of the weights, or of what determines their pattern: equal for equal draws."""
        skip = {} if self.skip_weight is None else {"skip": self.skip_weight}
        sides = (self.shape.outputs, self.shape.inputs, *self.shape.kernel)
        size = "x".join(map(str, sides))
        if self.stream is not None:
            beside = tensor_digest(skip) if skip else ""
            return _sign_digest(self.shape, self.width, self.stream, beside)
        if self.draws is not None:
            return self._digest_of_draws
        if self.first is not None and self.second is not None:
            return tensor_digest({"first": self.first, "second": self.second} | skip)
        factors = {f"factor {number}": factor for number, factor in enumerate(self.factors)} | skip
        return f"{self.pattern} {size}{f' {tensor_digest(factors)}' if factors else ''}"

    @cached_property
    def _digest_of_draws(self) -> str:
        """The digest of features that are not stored, so cannot change: drawn once to be hashed."""
        sizes = {
            "first": (self.width, self.shape.inputs),
            "second": (self.shape.outputs, self.width, *self.shape.kernel),
        }
        pairs = zip(sizes.items(), self.draws or (), strict=True)
        tables = [(name, (size, torch.float32), draws.runs()) for (name, size), draws in pairs]
        if (skip := self.skip_weight) is not None:
            tables.append(("skip", (skip.shape, skip.dtype), iter([skip])))
        return parts_digest(tables)


def _rows_on_disk(table: torch.Tensor) -> TableRows:
    """Rows of a mapped table (outer, c1, inner), whose rounded copies are in files too."""
    outer, features, inner = table.shape
    return TableRows(features, outer * inner, lambda start, stop: table[:, start:stop], mapped=True)


def shared_feature_rows(shape: LayerShape) -> torch.Tensor:
    """Which of M's n rows have a private feature at id_cond's minimum width (Eq. 3).

    All outputs' first entries share feature 0, which counts as private to the first output.
    """
    private = torch.ones(shape.equations, dtype=torch.bool)
    entries = shape.inputs * shape.taps  # of an output
    private[entries::entries] = False  # entry (i, first tap, first input), i > 1
    return private


def identity_weights(
    shape: LayerShape, index: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Feature l = (i, p, j) reads input j and writes output i at tap p; all n, or ``index``."""
    l = torch.arange(shape.equations) if index is None else index  # noqa: E741 (the papers' index)
    number = torch.arange(len(l))
    first = torch.zeros(len(l), shape.inputs, dtype=torch.float32)
    first[number, l % shape.inputs] = 1
    second = torch.zeros(shape.outputs, len(l), shape.taps, dtype=torch.float32)
    second[l // (shape.inputs * shape.taps), number, l // shape.inputs % shape.taps] = 1
    return first, second.reshape(shape.outputs, len(l), *shape.kernel)


def _kronecker_weights(
    shape: LayerShape, u2: torch.Tensor, u1: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Feature (q, d) reads the inputs by column d of U1 and writes outputs and taps by q of U2."""
    first = u1.T.repeat(len(u2), 1)
    second = u2.repeat_interleave(shape.inputs, dim=1).unflatten(0, (shape.outputs, shape.taps))
    second = second.transpose(1, 2).reshape(shape.outputs, len(first), *shape.kernel)
    return first, second.contiguous()


def _sign_factors(shape: LayerShape, width: int, stream: Stream) -> tuple[SignMatrix, SignMatrix]:
    """A (c1, c0) and B^T (c1, c2 taps) with entries ±sqrt(2 / fan-in), rounded to float32.

    >>> first, second = _sign_factors(LayerShape(3, 2, (3, 3)), 54, Stream(0, 0))
    >>> first.size, (second.rows, second.columns)
    (1.0, (54, 27))
    """

    def factor(columns: int, fan_in: int, word: str) -> SignMatrix:
        size = float(np.float32(math.sqrt(2 / fan_in)))
        return SignMatrix(width, columns, size, lambda start, stop: stream.raw(start, stop, word))

    first = factor(shape.inputs, shape.inputs, "first")
    return first, factor(shape.outputs * shape.taps, width * shape.taps, "second")


def _sign_digest(shape: LayerShape, width: int, stream: Stream, beside: str = "") -> str:
    """SHA-256 of the sizes, of ``beside``, and of both factors' bits, read a few at a time."""
    sides = (width, shape.outputs, shape.inputs, *shape.kernel)
    digest = hashlib.sha256(f"sign {sides} {beside};".encode())
    for factor in _sign_factors(shape, width, stream):
        for start in range(0, factor.bytes, HASHED_BYTES):
            stop = min(start + HASHED_BYTES, factor.bytes)
            digest.update(factor.draw(start, stop).data)
    return digest.hexdigest()
