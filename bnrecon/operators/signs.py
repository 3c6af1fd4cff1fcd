"""A matrix of random signs at one bit per entry; any rows can be generated when needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch

from bnrecon.operators.base import CHUNK_BYTES
from bnrecon.runtime.hardware import available_memory

GROUP = 16  # rows that share a word of 16 bits for each column
DRAWN_BYTES = 2**19  # of bits drawn in one call, which costs at least 20 µs
TILE_NUMBERS = 2**28  # signs expanded at once if all are kept
HELD_BYTES = 2**29  # of bits that are kept at most: drawing takes half as long as expanding

# By type: the integer of its size, whose highest bit is the type's sign.
INTEGERS = {
    torch.int8: torch.int8,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.float32: torch.int32,
    torch.float64: torch.int64,
}


def expand(
    words: torch.Tensor, dtype: torch.dtype, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Turn words (g, columns) of 16 bits into signs (16 g, columns): -1 where a bit is set.

    Row r is bit r mod 16 of words r // 16. The bit is moved to the sign bit of ``dtype`` and
    becomes the sign of 1: two passes, faster than a table of the signs of each byte. In int8 the
    sign is spread over all bits, which gives -1 or 0, and the lowest is set.

    Args:
        words: int16.
        dtype: of the signs.
        out: an integer tensor (g, 16, columns) of the size of ``dtype`` to write to.

    >>> expand(torch.tensor([[0, 1, 2]], dtype=torch.int16), torch.float32)[:3]
    tensor([[ 1., -1.,  1.],
            [ 1.,  1., -1.],
            [ 1.,  1.,  1.]])
    """
    if dtype == torch.int8:
        return _expand_bytes(words, out)
    integer = INTEGERS[dtype]
    last = torch.iinfo(integer).bits - 1
    shifts = torch.arange(last, last - GROUP, -1, dtype=integer, device=words.device)
    bits = torch.bitwise_left_shift(words.to(integer)[:, None], shifts[:, None], out=out)
    one = torch.ones((), dtype=dtype, device=words.device)
    # A trace cannot record a view in another type.
    if torch.jit.is_tracing():  # type: ignore[attr-defined] # public, though not in __all__
        return torch.where(bits < 0, -one, one).flatten(0, 1)
    signs = bits.view(dtype)
    return torch.copysign(one, signs, out=signs).flatten(0, 1)


def _expand_bytes(words: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """``expand`` in int8: a word's lower byte has rows 0 to 7, its upper one 8 to 15."""
    halves = torch.stack([words.to(torch.int8), (words >> 8).to(torch.int8)], 1)
    shifts = torch.arange(7, -1, -1, dtype=torch.int8, device=words.device)
    out = None if out is None else out.unflatten(1, (2, 8))
    bits = torch.bitwise_left_shift(halves[:, :, None], shifts[:, None], out=out)
    return bits.bitwise_right_shift_(7).bitwise_or_(1).flatten(0, 2)


@dataclass(frozen=True)
class SignMatrix:
    """A matrix with entries ±``size``, of which only the needed part is in memory."""

    rows: int  # of the matrix
    columns: int  # of the matrix
    size: float  # of every entry
    # ``draw(start, stop)`` gives bytes of a sequence that is the same at each call: the words of
    # the first 16 rows, column by column, lowest byte first, then those of the next
    draw: Callable[[int, int], np.ndarray]
    held: torch.Tensor | None = None  # all words, if kept

    @property
    def bytes(self) -> int:
        """Bytes of all bits."""
        return 2 * self.columns * -(-self.rows // GROUP)

    @staticmethod
    def pair_bytes(numbers: int, device: torch.device) -> int:
        """Bytes of the kept bits of A and B, which together have ``numbers`` signs."""
        return numbers // 8 if device.type != "cpu" else min(numbers // 8, 2 * HELD_BYTES)

    def words(self, start: int, stop: int) -> torch.Tensor:
        """The words of groups ``start`` to ``stop`` of 16 rows, (stop - start, columns)."""
        if self.held is not None:
            return self.held[start:stop]
        wide = 2 * self.columns
        drawn = self.draw(start * wide, stop * wide).view("<i2").astype(np.int16, copy=False)
        return torch.from_numpy(drawn.reshape(-1, self.columns))

    def hold(self, _dtype: torch.dtype, device: torch.device) -> SignMatrix:
        """The same matrix with its bits kept on the device: on a GPU, or if they are few."""
        if device.type == "cpu" and self.bytes > HELD_BYTES:
            return dataclasses.replace(self, held=None)
        words = self.words(0, -(-self.rows // GROUP)).to(device)
        return dataclasses.replace(self, held=words)

    def norms(self, device: torch.device) -> torch.Tensor:
        """Euclidean norms of the rows, all the same."""
        norm = self.size * self.columns**0.5
        return torch.full((self.rows,), norm, dtype=torch.float64, device=device)

    def section(self, part: slice) -> Self:
        """The matrix of some rows, from a multiple of 16 on."""
        start, stop, _ = part.indices(self.rows)
        assert start % GROUP == 0
        first = 2 * self.columns * (start // GROUP)
        held = None if self.held is None else self.held[start // GROUP :]
        return dataclasses.replace(
            self,
            rows=stop - start,
            draw=lambda a, b: self.draw(first + a, first + b),
            held=held,
        )

    def signs(
        self, part: slice, dtype: torch.dtype, device: torch.device | None = None
    ) -> torch.Tensor:
        """Some rows divided by ``size``: a matrix of ±1."""
        start, stop, _ = part.indices(self.rows)
        first = start // GROUP
        words = self.words(first, -(-stop // GROUP))
        whole = expand(words if device is None else words.to(device), dtype)
        return whole[start - first * GROUP : stop - first * GROUP]

    def values(self, part: slice, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Some rows, (count, columns)."""
        return self.signs(part, dtype, device).mul_(self.size)

    def tiles(
        self, rows: int, dtype: torch.dtype, device: torch.device
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Yield all rows as matrices of ±1, about ``rows`` at a time, and their indices.

        Each overwrites the previous one.
        """
        total = -(-self.rows // GROUP)
        groups = _groups(rows, total)
        many = groups * max(1, DRAWN_BYTES // (2 * self.columns * groups))
        out = None
        for run in range(0, total, many):
            words = self.words(run, min(run + many, total)).to(device)
            if out is None:
                size = groups, GROUP, self.columns
                out = torch.empty(size, dtype=INTEGERS[dtype], device=device)
            for first in range(0, len(words), groups):
                part = words[first : first + groups]
                start = (run + first) * GROUP
                signs = expand(part, dtype, out[: len(part)])[: self.rows - start]
                yield slice(start, start + len(signs)), signs


@dataclass(frozen=True)
class ExpandedSigns(SignMatrix):
    """A ``SignMatrix`` on a GPU that also keeps signs in bf16: expanding is slower than products.

    Tiles of types other than bf16 are expanded from the bits.

    Args:
        table: the signs (rows, columns), in bf16.

    >>> words = np.array([[1, 2]], dtype="<i2").view("u1").ravel()
    >>> bits = SignMatrix(2, 2, 0.5, lambda start, stop: words[start:stop])
    >>> signs = ExpandedSigns.of(bits, torch.device("cpu"))
    >>> signs.size, next(signs.tiles(16, torch.bfloat16, torch.device("cpu")))[1]
    (0.5, tensor([[-1.,  1.],
            [ 1., -1.]], dtype=torch.bfloat16))
    """

    table: torch.Tensor = field(kw_only=True)

    @classmethod
    def of(cls, matrix: SignMatrix, device: torch.device) -> ExpandedSigns:
        """Expand a matrix on a device."""
        size = matrix.rows, matrix.columns
        table = torch.empty(size, dtype=torch.bfloat16, device=device)
        rows = max(1, TILE_NUMBERS // max(1, matrix.columns))
        for part, tile in matrix.tiles(rows, table.dtype, device):
            table[part] = tile
        return cls(**vars(matrix), table=table)

    def hold(self, dtype: torch.dtype, device: torch.device) -> SignMatrix:
        """These signs in bf16; for another type their bits alone, prepared for products."""
        if (dtype, device) == (self.table.dtype, self.table.device):
            return self
        bits = SignMatrix(self.rows, self.columns, self.size, self.draw, self.held)
        return bits.hold(dtype, device)

    def section(self, part: slice) -> Self:
        """The matrix of some rows, from a multiple of 16 on."""
        return dataclasses.replace(super().section(part), table=self.table[part])

    def tiles(
        self, rows: int, dtype: torch.dtype, device: torch.device
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """The runs of rows of ``SignMatrix.tiles``, not copied if in bf16."""
        if dtype != self.table.dtype:
            yield from super().tiles(rows, dtype, device)
            return
        step = GROUP * _groups(rows, -(-self.rows // GROUP))
        for start in range(0, self.rows, step):
            part = slice(start, min(start + step, self.rows))
            yield part, self.table[part]


def has_room_for_signs(numbers: int, device: torch.device) -> bool:
    """Whether a device should keep this many signs in bf16 while a system is solved.

    On a GPU they may take half of the free memory less three tiles of a product, so that they never
    cause a lack of memory. On a CPU tiles of signs stay in the cache, and none is kept.

    >>> has_room_for_signs(10**6, torch.device("cpu"))
    False
    """
    if device.type == "cpu":
        return False
    return 2 * numbers <= available_memory(device) // 2 - 3 * CHUNK_BYTES[device.type]


def _groups(rows: int, total: int) -> int:
    """How many of ``total`` groups of 16 rows make a tile of about ``rows``."""
    return min(max(1, rows // GROUP), max(1, total))
