"""The register of feature distributions, and how many features each takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bnrecon.features.pair import Features
from bnrecon.features.shapes import LayerShape, named_width
from bnrecon.runtime.errors import UserError, nearest
from bnrecon.runtime.own_code import Registered

__all__ = ["DISTRIBUTIONS", "Distribution", "choose_width", "register_features"]


Draw = Callable[..., "tuple[torch.Tensor, torch.Tensor] | Features"]


@dataclass(frozen=True)
class Distribution:
    """A registered distribution: how to draw, whether draws are bit for bit portable, whether M is orthogonal."""

    name: str
    registered: Registered
    portable: bool
    orthogonal: bool
    takes_strict: bool
    widths: tuple[str, ...]
    at_most_n: bool = False

    @property
    def draw(self) -> Draw:
        """The function that draws."""
        return self.registered.function

    @property
    def code(self) -> str | None:
        """A fingerprint of a user's distribution, ``None`` for bnrecon's own: results of other code are others."""
        return self.registered.fingerprint

    def check_width(self, shape: LayerShape, width: int) -> None:
        """Raise ``UserError`` for a width that this distribution does not have."""
        if self.at_most_n and width > shape.equations:
            raise UserError(
                f"{self.name} is made of at most n = {shape.equations} features for a layer of this size; {width} were asked for: give "
                "their density as features.oversampling (of a trained network: target.oversampling), 1 or below"
            )
        allowed = {word: named_width(shape, word) for word in self.widths}
        if allowed and width not in allowed.values():
            choices = " or ".join(
                f"{count} (features.width={word})" for word, count in allowed.items()
            )
            size = "x".join(map(str, (shape.outputs, shape.inputs, *shape.kernel)))
            raise UserError(
                f"{self.name} has {choices} features for a layer of {size}; {width} were asked for"
            )


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
    source files of the module that registers and of your modules that it imports (a changed comment is a rerun), and to the values
    bound to the function; with a ``version`` to that instead: change it when the draws change.

    >>> @register_features("cauchy")
    ... def cauchy(shape, width, stream):
    ...     a = stream.normal((width, shape.inputs), "a") / stream.normal((width, shape.inputs), "b")
    ...     return a, stream.normal((shape.outputs, width, *shape.kernel), "c")
    >>> from bnrecon.features import draw
    >>> draw("cauchy", LayerShape(4, 3, (3, 3)), width=108, seed=0, layer=0).weights()[1].shape
    torch.Size([4, 108, 3, 3])
    """

    def add(function: Draw) -> Draw:
        registered = Registered(f"features {name}", function, version)
        DISTRIBUTIONS[name] = Distribution(
            name, registered, portable, orthogonal, takes_strict, widths, at_most_n
        )
        return function

    return add


def distribution(name: str) -> Distribution:
    """Look a distribution up; raise ``UserError`` with the nearest name for an unknown one."""
    if name not in DISTRIBUTIONS:
        raise UserError(f"features.name={name}: {nearest(name, DISTRIBUTIONS)}")
    return DISTRIBUTIONS[name]


def choose_width(
    name: str,
    shape: LayerShape,
    oversampling: float | None = None,
    excess: int | None = None,
    width: str | int | None = None,
    default: float = 1.5,
) -> int:
    """Turn the one of ``oversampling`` (c1/n), ``excess`` (c1 - n) and ``width`` (c1) that is given into c1.

    With none given, n for distributions that have no more or need no more, ``default`` · n for the others.
    """
    n = shape.equations
    if width is not None:
        return named_width(shape, str(width)) or int(width)
    if excess is not None:
        return n + excess
    if oversampling is None:
        oversampling = (
            1.0 if distribution(name).orthogonal or distribution(name).at_most_n else default
        )
    return math.ceil(oversampling * n)
