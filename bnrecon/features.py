"""Frozen random features: every distribution, convolutional and linear, drawn from one seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bnrecon.errors import UserError, nearest
from bnrecon.own_code import blamed, fingerprint, is_own
from bnrecon.portable_random import Stream
from bnrecon.store import tensor_digest

__all__ = [
    "DISTRIBUTIONS",
    "SKIPS",
    "Distribution",
    "Features",
    "LayerShape",
    "check_skip",
    "choose_width",
    "draw",
    "register_features",
    "shared_feature_rows",
]


SKIPS = ("none", "inner", "outer")  # where the second normalization stands relative to a skip connection


@dataclass(frozen=True)
class LayerShape:
    """A target layer's shape: ``outputs`` c2, ``inputs`` c0 and the kernel's sides; a linear layer's kernel is 1x1."""

    outputs: int
    inputs: int
    kernel: tuple[int, int] = (1, 1)

    @property
    def taps(self) -> int:
        """Positions in the kernel, kh · kw."""
        return self.kernel[0] * self.kernel[1]

    @property
    def equations(self) -> int:
        """n = c2 · c0 · kh · kw: the number of entries of the target's weight (first source kernel 1x1)."""
        return self.outputs * self.inputs * self.taps

    @property
    def minimum_width(self) -> int:
        """n - c2 + 1 (Burkholz 2024, Thm 2.2)."""
        return self.equations - self.outputs + 1

    def feature_bytes(self, width: int) -> int:
        """Size of the two float32 weights of ``width`` features."""
        return 4 * width * (self.inputs + self.outputs * self.taps)


@dataclass(frozen=True)
class Features:
    """The frozen pair for one target layer.

    ``first`` is A (c1, c0), ``second`` is B (c2, c1, kh, kw), both float32; ``redrawn`` counts features that came out wholly
    zero and were drawn anew. Features that follow a ``pattern`` store neither; ``weights`` forms them when asked:
    ``"identity"`` (id_cond of maximum width, M = I), ``"shared"`` (id_cond of minimum width), ``"kronecker"`` (ortho_cond, from its
    ``factors`` U2 and U1).

    With ``skip="inner"`` or ``"outer"`` a frozen skip connection S (c2, c0), ``skip_weight``, runs beside the pair, at the kernel's
    centre: the identity where c2 = c0, a random 1x1 convolution elsewhere.
    """

    shape: LayerShape
    width: int
    first: torch.Tensor | None = None
    second: torch.Tensor | None = None
    redrawn: int = 0
    pattern: str | None = None
    factors: tuple[torch.Tensor, ...] = ()
    skip: str = "none"
    skip_weight: torch.Tensor | None = None

    @property
    def identity(self) -> bool:
        """Whether M is the identity."""
        return self.pattern == "identity"

    def weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A (c1, c0) and B (c2, c1, kh, kw), formed from the pattern where they are not stored."""
        if self.pattern is None:
            return self.first, self.second
        if self.pattern == "kronecker":
            return _kronecker_weights(self.shape, *self.factors)
        first, second = _identity_weights(self.shape)
        if self.pattern == "shared":
            private = shared_feature_rows(self.shape)
            first, second = first[private], second[:, private].contiguous()
            second[:, 0, 0, 0] = 1
        return first, second

    def digest(self) -> str:
        """SHA-256 of the weights, or of what their pattern is made of, by which a reload knows that it drew the same ones."""
        skip = {} if self.skip_weight is None else {"skip": self.skip_weight}
        if self.pattern is None:
            return tensor_digest({"first": self.first, "second": self.second} | skip)
        size = f"{self.shape.outputs}x{self.shape.inputs}x{self.shape.kernel[0]}x{self.shape.kernel[1]}"
        factors = {f"factor {number}": factor for number, factor in enumerate(self.factors)} | skip
        return f"{self.pattern} {size}{f' {tensor_digest(factors)}' if factors else ''}"


Draw = Callable[..., "tuple[torch.Tensor, torch.Tensor] | Features"]


@dataclass(frozen=True)
class Distribution:
    """A registered distribution: how to draw, whether draws are bit for bit portable, whether M is orthogonal."""

    name: str
    draw: Draw
    portable: bool
    orthogonal: bool
    takes_strict: bool
    widths: tuple[str, ...]
    at_most_n: bool = False
    version: str | None = None

    @property
    def code(self) -> str | None:
        """A fingerprint of a user's distribution, ``None`` for bnrecon's own: results of other code are others."""
        return fingerprint(self.draw, self.version)

    def check_width(self, shape: LayerShape, width: int) -> None:
        """Raise ``UserError`` for a width that this distribution does not have."""
        if self.at_most_n and width > shape.equations:
            raise UserError(
                f"{self.name} is made of at most n = {shape.equations} features for a layer of this size; {width} were asked for: give "
                "their density as features.oversampling (of a trained network: target.oversampling), 1 or below"
            )
        allowed = {word: named_width(shape, word) for word in self.widths}
        if allowed and width not in allowed.values():
            choices = " or ".join(f"{count} (features.width={word})" for word, count in allowed.items())
            size = "x".join(map(str, (shape.outputs, shape.inputs, *shape.kernel)))
            raise UserError(f"{self.name} has {choices} features for a layer of {size}; {width} were asked for")


DISTRIBUTIONS: dict[str, Distribution] = {}


def register_features(
    name: str,
    *,
    portable: bool = True,
    orthogonal: bool = False,
    takes_strict: bool = False,
    widths: tuple[str, ...] = (),
    at_most_n: bool = False,
    version: str | None = None,
) -> Callable[[Draw], Draw]:
    """Register a distribution under a name that ``features.name`` accepts.

    The function is called as ``draw(shape, width, stream)`` and returns A (c1, c0) and B (c2, c1, kh, kw); all its
    randomness must come from ``stream``. ``portable=False`` for draws that pass through a matrix factorization, which
    differs between machines. ``orthogonal=True`` promises M^T M = I at width n, which the closed form then uses. ``widths`` names
    the only widths there are (``"minimum"``, ``"maximum"``); any, if empty; any up to n with ``at_most_n``. Results belong to the
    function's source, and to that of what it uses; with a ``version`` to that instead: change it when the draws change.

    >>> @register_features("cauchy")
    ... def cauchy(shape, width, stream):
    ...     a = stream.normal((width, shape.inputs), "a") / stream.normal((width, shape.inputs), "b")
    ...     return a, stream.normal((shape.outputs, width, *shape.kernel), "c")
    >>> draw("cauchy", LayerShape(4, 3, (3, 3)), width=108, seed=0, layer=0).weights()[1].shape
    torch.Size([4, 108, 3, 3])
    """

    def add(function: Draw) -> Draw:
        DISTRIBUTIONS[name] = Distribution(
            name, function, portable, orthogonal, takes_strict, widths, at_most_n, version
        )  # fmt: skip
        return function

    return add


def distribution(name: str) -> Distribution:
    """Look a distribution up; raise ``UserError`` with the nearest name for an unknown one."""
    if name not in DISTRIBUTIONS:
        raise UserError(f"features.name={name}: {nearest(name, DISTRIBUTIONS)}")
    return DISTRIBUTIONS[name]


def check_skip(name: str) -> None:
    """Raise ``UserError`` for a position of the skip connection that there is not."""
    if name not in SKIPS:
        raise UserError(f"features.skip={name}: {nearest(name, SKIPS)}")


def draw(name: str, shape: LayerShape, width: int, seed: int, layer: int, strict: bool = False, skip: str = "none") -> Features:
    """Draw the features of layer number ``layer``.

    ``strict`` keeps features of sparse distributions that came out wholly zero; ``skip`` adds a skip connection. Raises
    ``UserError`` for a width that the distribution does not have.

    >>> draw("he_normal", LayerShape(2, 3), width=6, seed=0, layer=0).first.shape
    torch.Size([6, 3])
    """
    kind = distribution(name)
    kind.check_width(shape, width)
    options = {"strict": strict} if kind.takes_strict else {}
    if is_own(kind.draw):
        drawn = _drawn_by_user(kind, shape, width, Stream(seed, layer), options)
    else:
        drawn = kind.draw(shape, width, Stream(seed, layer), **options)
        drawn = drawn if isinstance(drawn, Features) else Features(shape, width, *drawn)
    if skip == "none":
        return drawn
    return dataclasses.replace(drawn, skip=skip, skip_weight=_skip_weight(shape, Stream(seed, layer)))


def _drawn_by_user(kind: Distribution, shape: LayerShape, width: int, stream: Stream, options: dict) -> Features:
    """What a user's distribution draws, its shapes, type and values checked."""
    with blamed(f"features {kind.name}"):
        drawn = kind.draw(shape, width, stream, **options)
    if isinstance(drawn, Features):
        return drawn
    if not (isinstance(drawn, tuple | list) and len(drawn) == 2 and all(isinstance(part, torch.Tensor) for part in drawn)):
        raise UserError(f"features {kind.name}: it must return two tensors, A (c1, c0) and B (c2, c1, kh, kw)")
    wanted = {"A": (width, shape.inputs), "B": (shape.outputs, width, *shape.kernel)}
    for (name, size), part in zip(wanted.items(), drawn, strict=True):
        if tuple(part.shape) != size:
            raise UserError(f"features {kind.name}: {name} is of shape {tuple(part.shape)}; for this layer it must be {size}")
        if not part.is_floating_point() or not bool(part.isfinite().all()):
            raise UserError(f"features {kind.name}: {name} must hold finite floating-point numbers ({part.dtype} given)")
    return Features(shape, width, *(part.detach().to("cpu", torch.float32) for part in drawn))


def _skip_weight(shape: LayerShape, stream: Stream) -> torch.Tensor:
    """S (c2, c0): ResNet's shortcuts, the identity where shapes agree and a 1x1 projection (here random and frozen) elsewhere."""
    if shape.outputs == shape.inputs:
        return torch.eye(shape.outputs)
    return stream.normal((shape.outputs, shape.inputs), "skip", math.sqrt(2 / shape.inputs))


def choose_width(
    name: str, shape: LayerShape, oversampling: float | None = None, excess: int | None = None, width: str | int | None = None,
    default: float = 1.5,
) -> int:  # fmt: skip
    """Turn the one of ``oversampling`` (c1/n), ``excess`` (c1 - n) and ``width`` (c1) that is given into c1.

    With none given, n for distributions that have no more or need no more, ``default`` · n for the others.
    """
    n = shape.equations
    if width is not None:
        return named_width(shape, str(width)) or int(width)
    if excess is not None:
        return n + excess
    if oversampling is None:
        oversampling = 1.0 if distribution(name).orthogonal or distribution(name).at_most_n else default
    return math.ceil(oversampling * n)


def named_width(shape: LayerShape, word: str) -> int | None:
    """The width that ``minimum`` (n - c2 + 1) or ``maximum`` (n) stands for."""
    return {"minimum": shape.minimum_width, "maximum": shape.equations}.get(word)


@register_features("he_normal")
def he_normal(shape: LayerShape, width: int, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal entries of variance 2 / fan-in (He et al. 2015)."""
    return (
        stream.normal((width, shape.inputs), "first", math.sqrt(2 / shape.inputs)),
        stream.normal((shape.outputs, width, *shape.kernel), "second", math.sqrt(2 / (width * shape.taps))),
    )


@register_features("he_uniform")
def he_uniform(shape: LayerShape, width: int, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """Entries uniform on ±sqrt(6 / fan-in) (He et al. 2015)."""
    return (
        stream.uniform((width, shape.inputs), "first", math.sqrt(6 / shape.inputs)),
        stream.uniform((shape.outputs, width, *shape.kernel), "second", math.sqrt(6 / (width * shape.taps))),
    )


@register_features("orthogonal", portable=False)
def orthogonal(shape: LayerShape, width: int, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """The flattened weights of ``torch.nn.init.orthogonal_``: orthonormal columns of A, orthonormal rows of B."""
    first = _orthonormal_columns(stream.normal((width, shape.inputs), "first"))
    flat = stream.normal((shape.outputs, width * shape.taps), "second")
    second = _orthonormal_columns(flat.T).T if flat.shape[0] <= flat.shape[1] else _orthonormal_columns(flat)
    return first, second.reshape(shape.outputs, width, *shape.kernel).contiguous()


def _orthonormal_columns(normal: torch.Tensor) -> torch.Tensor:
    """Haar-distributed orthonormal columns (rows, if there are fewer): Q of a QR decomposition, signs from R's diagonal."""
    if normal.shape[0] < normal.shape[1]:
        return _orthonormal_columns(normal.T).T
    q, r = torch.linalg.qr(normal)
    return q * r.diagonal().sign()


@register_features("sparse_he_normal", takes_strict=True)
def sparse_he_normal(shape: LayerShape, width: int, stream: Stream, strict: bool) -> Features:
    """he_normal with each entry set to 0 with probability 1/2 (Burkholz 2024, Sect. 3.2; the sequel's "ER normal")."""
    return _masked(shape, width, stream, strict, lambda size, word, deviation: stream.normal(size, word, deviation))


@register_features("er_sign", takes_strict=True)
def er_sign(shape: LayerShape, width: int, stream: Stream, strict: bool) -> Features:
    """Entries of one magnitude, sqrt(2 / fan-in), and random sign, each set to 0 with probability 1/2 (Random features, Sect. 2.1)."""
    return _masked(
        shape, width, stream, strict, lambda size, word, deviation: deviation * torch.where(stream.mask(size, word), 1.0, -1.0)
    )


def _masked(shape: LayerShape, width: int, stream: Stream, strict: bool, values: Callable[..., torch.Tensor]) -> Features:
    """Entries ``values(size, word, deviation)``, each set to 0 with probability 1/2.

    Of A's rows a fraction 2^-c0 is wholly zero: 1/8 for an RGB image. Such a feature is dead and lowers the rank of M, so it
    is drawn again and counted, unless ``strict``.
    """

    def masked(rows: int, columns: int, fan_in: int, word: str) -> torch.Tensor:
        return values((rows, columns), word, math.sqrt(2 / fan_in)) * stream.mask((rows, columns), f"{word} mask")

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


@register_features("id_cond", orthogonal=True, widths=("maximum", "minimum"))
def id_cond(shape: LayerShape, width: int, stream: Stream) -> Features:
    """One feature for each entry of the target, so that M = I (Random features for normalization layers, Eq. 2).

    At the minimum width n - c2 + 1 all outputs share the feature of the first input and tap (Eq. 3). Nothing is random.
    """
    return Features(shape, width, pattern="identity" if width == shape.equations else "shared")


@register_features("sparse_id_cond", at_most_n=True)
def sparse_id_cond(shape: LayerShape, width: int, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """A random c1 of id_cond's n features: an Erdős-Rényi mask of density p = c1 / n (Random features, Thm 4.2).

    The number of features is given, not drawn, so that a run says its width beforehand: masks of one size, each as likely.

    >>> draw("sparse_id_cond", LayerShape(5, 4), width=4, seed=0, layer=0).weights()[0].sum()
    tensor(4.)
    """
    return _identity_weights(shape, stream.order(shape.equations, "kept")[:width].sort().values)


def shared_feature_rows(shape: LayerShape) -> torch.Tensor:
    """Which of M's n rows have a feature of their own at id_cond's minimum width (Eq. 3); the others share feature 0.

    The first entries of all outputs share feature 0, which the first of them counts as its own.
    """
    private = torch.ones(shape.equations, dtype=torch.bool)
    private[torch.arange(1, shape.outputs) * shape.inputs * shape.taps] = False  # entry (i, first tap, first input), i > 1
    return private


def _identity_weights(shape: LayerShape, kept: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Feature number l = (i, p, j) reads input j and writes output i at tap p; all n of them, or those ``kept``."""
    l = torch.arange(shape.equations) if kept is None else kept  # noqa: E741 (the papers' index)
    number = torch.arange(len(l))
    first = torch.zeros(len(l), shape.inputs)
    first[number, l % shape.inputs] = 1
    second = torch.zeros(shape.outputs, len(l), shape.taps)
    second[l // (shape.inputs * shape.taps), number, l // shape.inputs % shape.taps] = 1
    return first, second.reshape(shape.outputs, len(l), *shape.kernel)


@register_features("ortho_cond", portable=False, orthogonal=True, widths=("maximum",))
def ortho_cond(shape: LayerShape, width: int, stream: Stream) -> Features:
    """M = U2 ⊗ U1 with Haar-random orthogonal U2 (c2 kh kw) and U1 (c0) (Random features for normalization layers, Sect. 3)."""
    u1 = _orthonormal_columns(stream.normal((shape.inputs, shape.inputs), "first"))
    rows = shape.outputs * shape.taps
    u2 = _orthonormal_columns(stream.normal((rows, rows), "second"))
    return Features(shape, width, pattern="kronecker", factors=(u2, u1))


def _kronecker_weights(shape: LayerShape, u2: torch.Tensor, u1: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Feature number (q, d) reads the inputs by column d of U1 and writes the outputs and taps by column q of U2."""
    first = u1.T.repeat(len(u2), 1)
    second = u2.repeat_interleave(shape.inputs, dim=1).reshape(shape.outputs, shape.taps, len(first))
    return first, second.transpose(1, 2).reshape(shape.outputs, len(first), *shape.kernel).contiguous()
