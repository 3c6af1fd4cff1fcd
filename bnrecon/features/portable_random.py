"""Random numbers that are bit-identical on any machine; any part can be drawn in any order.

torch's CPU normals differ between vector instruction sets, and mathematical libraries differ in the
last bit of a logarithm. Here integers come from NumPy's counter-based Philox, whose raw stream is
guaranteed stable, and become floats by operations that IEEE 754 defines to the last bit.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from bnrecon.features.normal_quantile import AT_ONCE, normals

# Numbers per block; each block has a separate key
BLOCK = 1 << 18
HASHED = 2**20  # numbers of a table in memory at once for hashing
STEP = 8  # integers per step of Philox's counter
PIECE = 1 << 17  # numbers that a thread draws at once
FEW_THREADS = 4  # with more, short NumPy calls mostly wait for the interpreter lock


@dataclass(frozen=True)
class Stream:
    """Independent sequences of numbers, one for each seed, layer number and word.

    >>> Stream(seed=0, layer=3).normal((2, 2), "first")
    tensor([[ 0.0630, -1.2832],
            [ 0.4469,  2.3535]])
    """

    seed: int
    layer: int

    def bits(self, count: int, word: str) -> np.ndarray:
        """Draw ``count`` uniform 32-bit integers."""
        return self.raw(0, 4 * count, word).view("<u4").astype(np.uint32, copy=False)

    def raw(self, start: int, stop: int, word: str) -> np.ndarray:
        """Bytes ``start`` to ``stop`` of the integers that ``bits`` draws, skipping those before.

        >>> stream = Stream(seed=0, layer=3)
        >>> bool((stream.raw(5, 9, "w") == stream.bits(3, "w").astype("<u4").view("u1")[5:9]).all())
        True
        """
        first = start // 4
        out = np.empty(-(-stop // 4) - first, dtype="<u4")

        def draw(at: int) -> None:
            self._draw(out[at : at + BLOCK], word, (first,), len(out), at)

        _on_threads(draw, range(0, len(out), BLOCK))
        return out.view("u1")[start % 4 :][: stop - start]

    def normal(
        self,
        shape: tuple[int, ...],
        word: str,
        deviation: float = 1.0,
        starts: Sequence[int] = (0,),
    ) -> torch.Tensor:
        """Draw normal float32 numbers of mean 0, by inverting the distribution function.

        Args:
            shape: of the result.
            word: which sequence is drawn.
            deviation: standard deviation.
            starts: positions in the sequence of the runs of equal length that fill the result one
                after the other; each is drawn without the numbers before it.

        >>> stream = Stream(seed=0, layer=3)
        >>> whole = stream.normal((9,), "w")
        >>> runs = stream.normal((2, 3), "w", starts=(6, 1))
        >>> torch.equal(runs[0], whole[6:9]), torch.equal(runs[1], whole[1:4])
        (True, True)
        """
        at_once = PIECE if torch.get_num_threads() > FEW_THREADS else AT_ONCE
        out = np.empty(math.prod(shape), dtype=np.float32)
        self._fill(out, word, starts, lambda bits, part: normals(bits, deviation, part, at_once))
        return torch.from_numpy(out).reshape(shape)

    def uniform(
        self, shape: tuple[int, ...], word: str, bound: float = 1.0, starts: Sequence[int] = (0,)
    ) -> torch.Tensor:
        """Draw float32 numbers uniform on [-bound, bound]; ``starts`` as in ``normal``."""

        def write(bits: np.ndarray, part: np.ndarray) -> None:
            centred = bits - (2.0**31 - 0.5)  # exact in float64, as is the factor 2^-31
            np.multiply(centred, bound * 2.0**-31, out=part, casting="same_kind")

        out = np.empty(math.prod(shape), dtype=np.float32)
        self._fill(out, word, starts, write)
        return torch.from_numpy(out).reshape(shape)

    def mask(self, shape: tuple[int, ...], word: str, share: float = 0.5) -> torch.Tensor:
        """Draw booleans that are true with probability ``share``."""
        drawn = self.bits(math.prod(shape), word) >= round((1 - share) * 2**32)
        return torch.from_numpy(drawn).reshape(shape)

    def order(self, count: int, word: str) -> torch.Tensor:
        """Draw a permutation of 0 … count - 1."""
        return torch.from_numpy(np.argsort(self.bits(count, word), kind="stable"))

    def _fill(
        self,
        out: np.ndarray,
        word: str,
        starts: Sequence[int],
        write: Callable[[np.ndarray, np.ndarray], object],
    ) -> None:
        """Let ``write`` turn the integers of runs into numbers."""
        length = len(out) // len(starts)

        def fill(at: int) -> None:
            part = out[at : at + PIECE]
            drawn = np.empty(len(part), dtype="<u4")
            self._draw(drawn, word, starts, length, at)
            write(drawn, part)

        _on_threads(fill, range(0, len(out), PIECE))

    def _draw(
        self, out: np.ndarray, word: str, starts: Sequence[int], length: int, first: int
    ) -> None:
        """Write the runs of ``length`` that begin at ``starts``, from integer ``first`` on."""
        generator = np.random.Philox(key=0)
        state = generator.state | {"buffer_pos": 4}  # no numbers buffered
        done = 0
        while done < len(out):
            run, inside = divmod(first + done, length)
            number, offset = divmod(starts[run] + inside, BLOCK)
            count = min(len(out) - done, length - inside, BLOCK - offset)
            counter = np.array([offset // STEP, 0, 0, 0], dtype=np.uint64)
            state["state"] = {"counter": counter, "key": _key(self.seed, self.layer, word, number)}
            generator.state = state
            raw = generator.random_raw(-(-(offset % STEP + count) // 2)).astype("<u8", copy=False)
            out[done:][:count] = raw.view("<u4")[offset % STEP :][:count]
            done += count


def _on_threads(work: Callable[[int], None], pieces: range) -> None:
    threads = min(torch.get_num_threads(), len(pieces))
    if threads <= 1:
        for piece in pieces:
            work(piece)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, pieces))


@lru_cache(1 << 14)
def _key(seed: int, layer: int, word: str, number: int) -> np.ndarray:
    entropy = [seed, layer, zlib.crc32(word.encode()), number]
    if seed >= 2**32:  # two words, like a layer with a group: one more word tells them apart
        entropy.append(1)
    return np.random.SeedSequence(entropy).generate_state(2, np.uint64)


@dataclass(frozen=True)
class Draws:
    """A table (outer, features, inner) of a sequence's numbers, the last index running fastest.

    >>> from functools import partial
    >>> draws = Draws((2, 5, 3), partial(Stream(0, 0).normal, word="w"))
    >>> torch.equal(draws.part(1, 4), draws.part(0, 5)[:, 1:4])
    True
    """

    shape: tuple[int, int, int]
    draw: Callable[..., torch.Tensor]  # ``Stream.normal`` or ``Stream.uniform`` with its word

    def part(self, start: int, stop: int) -> torch.Tensor:
        """The numbers of features ``start`` to ``stop``: (outer, stop - start, inner)."""
        outer, features, inner = self.shape
        starts = tuple((number * features + start) * inner for number in range(outer))
        return self.draw((outer, stop - start, inner), starts=starts)

    def runs(self) -> Iterator[torch.Tensor]:
        """All numbers of the sequence, a few at a time."""
        count = math.prod(self.shape)
        for start in range(0, count, HASHED):
            yield self.draw((min(HASHED, count - start),), starts=(start,))
