"""The register of feature distributions, and how many features each takes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from bnrecon.features import distributions
from bnrecon.features.pair import Features
from bnrecon.features.shapes import LayerShape, named_width
from bnrecon.features.spec import STORAGES
from bnrecon.runtime.errors import UserError, require_choice
from bnrecon.runtime.user_code import Registered, require_name, unregistered

Draw = Callable[..., tuple[torch.Tensor, torch.Tensor] | Features]


@dataclass(frozen=True)
class Distribution:
    """A registered distribution."""

    name: str  # what ``FeatureSpec.name`` calls it
    registered: Registered  # the function that draws, and who registered it
    portable: bool = True  # same draws on every machine, so no matrix factorization
    orthogonal: bool = False  # M^T M = I at width n
    takes_strict: bool = False  # the function takes ``strict``
    widths: tuple[str, ...] = ()  # the only widths, of ``minimum`` and ``maximum``; any if empty
    at_most_n: bool = False  # at most n features
    # Where its features can be: in ``memory``, on ``disk``, or ``regenerate`` (nowhere) if any part
    # can be generated alone. Solvers need no stored weights of features that follow a pattern
    storages: tuple[str, ...] = ("memory", "disk")
    # The least number of features beyond n if none is requested: entries of few values make small
    # systems singular by chance
    spare: int = 0

    def check_width(self, shape: LayerShape, width: int) -> None:
        """Raise ``UserError`` for a width that this distribution does not have."""
        if self.at_most_n and width > shape.equations:
            raise UserError(
                f"{self.name} has at most n = {shape.equations} features for a layer of this "
                f"size, not {width}: give their density as oversampling, 1 or below"
            )
        allowed = {name: named_width(shape, name) for name in self.widths}
        if allowed and width not in allowed.values():
            choices = " or ".join(f"{count} (width={name})" for name, count in allowed.items())
            size = "x".join(map(str, (shape.outputs, shape.inputs, *shape.kernel)))
            raise UserError(
                f"{self.name} has {choices} features for a layer of {size}, not {width}"
            )

    def check_storage(self, storage: str) -> None:
        """Raise ``UserError`` for a storage that is unknown or not possible for these features."""
        if storage in self.storages:
            return
        possible = [name for name in STORAGES if name != "auto"]
        require_choice("storage=", storage, possible)
        why = {
            "regenerate": "cannot be generated in parts",
            "disk": "follows a pattern and has no weights to store",
        }[storage]
        others = [name for name, kind in DISTRIBUTIONS.items() if storage in kind.storages]
        raise UserError(
            f"storage={storage}: {self.name} {why}; take storage={' or '.join(self.storages)}, "
            f"or features={', '.join(others)}"
        )


def _built_in(function: Draw, **traits: Any) -> Distribution:
    name = function.__name__
    return Distribution(name, Registered(f"features {name}", function), **traits)


ANYWHERE = ("memory", "regenerate", "disk")
PATTERN: dict[str, Any] = {"orthogonal": True, "storages": ("memory",)}
# Small layers of features with few values or zeros are often singular: for 2x2, 15% of er_sign's M
# with 1.5 n features; with n + 24, 0.2% of sign's; with n + 64, 1e-8 by 4 (3/4)^(n + 64).
SPARE = 64

DISTRIBUTIONS = {
    kind.name: kind
    for kind in (
        _built_in(distributions.he_normal, storages=ANYWHERE),
        _built_in(distributions.he_uniform, storages=ANYWHERE),
        _built_in(distributions.orthogonal, portable=False),
        _built_in(distributions.sign, storages=ANYWHERE, spare=SPARE),
        _built_in(distributions.sparse_he_normal, takes_strict=True, spare=SPARE),
        _built_in(distributions.er_sign, takes_strict=True, spare=SPARE),
        _built_in(distributions.id_cond, widths=("maximum", "minimum"), **PATTERN),
        _built_in(distributions.sparse_id_cond, at_most_n=True),
        _built_in(distributions.ortho_cond, portable=False, widths=("maximum",), **PATTERN),
    )
}


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
    """Register ``draw(shape, c1, stream)``, which returns A (c1, c0) and B (c2, c1, kh, kw).

    All its randomness must come from ``stream``, a ``bnrecon.features.portable_random.Stream``.
    Results depend on the source file of the registering module (even a changed comment causes a
    rerun), or on ``version`` if set.

    Args:
        name: selected by ``features=name``.
        portable: ``False`` for draws that pass through a matrix factorization, which differs
            between machines.
        orthogonal: ``True`` promises M^T M = I at width n, which the closed form then uses.
        takes_strict: the function takes a fourth argument ``strict``: keep all-zero features.
        widths: the only possible widths, of ``"minimum"`` and ``"maximum"``; any, if empty.
        at_most_n: whether there are at most n features.
        version: change it when the draws change; without it the source file counts.

    Raises ``UserError`` for another word among ``widths``.

    >>> @register_features("cauchy")
    ... def cauchy(shape, c1, stream):
    ...     a, b = (stream.normal((c1, shape.inputs), word) for word in "ab")
    ...     return a / b, stream.normal((shape.outputs, c1, *shape.kernel), "c")
    >>> from bnrecon.features import draw
    >>> draw("cauchy", LayerShape(4, 3, (3, 3)), width=108, seed=0, layer=0).weights()[1].shape
    torch.Size([4, 108, 3, 3])
    >>> DISTRIBUTIONS.pop("cauchy").portable
    True
    """
    require_name("register_features", name)
    for word in widths:
        require_choice("widths=", word, ("minimum", "maximum"))

    def add(function: Draw) -> Draw:
        registered = Registered(f"features {name}", function, version)
        registered.warn_of_replacing(getattr(DISTRIBUTIONS.get(name), "registered", None))
        DISTRIBUTIONS[name] = Distribution(
            name, registered, portable, orthogonal, takes_strict, widths, at_most_n
        )
        return function

    return add


def distribution(name: str) -> Distribution:
    """Return the distribution of that name.

    Raises ``UserError`` with the nearest name for an unknown one.
    """
    if name not in DISTRIBUTIONS:
        raise unregistered("features", name, DISTRIBUTIONS)
    return DISTRIBUTIONS[name]


def choose_width(
    name: str,
    shape: LayerShape,
    oversampling: float | None = None,
    excess: int | None = None,
    width: str | int | None = None,
    default: float = 1.5,
) -> int:
    """Convert ``oversampling``, ``excess`` or ``width``, whichever is set, to c1.

    Args:
        name: the distribution's.
        shape: the target layer's; n is its number of equations.
        oversampling: c1 / n, rounded up.
        excess: c1 - n.
        width: c1 as a number, ``"minimum"`` or ``"maximum"``.
        default: oversampling if none is set; 1 for distributions that have or need at most n
            features. Those with fixed ``widths`` have the first of them.

    >>> choose_width("he_normal", LayerShape(4, 3, (3, 3)))
    162
    """
    n = shape.equations
    if width is not None:
        return named_width(shape, str(width)) or int(width)
    if excess is not None:
        return n + int(excess)  # it may be a NumPy integer
    least = 0
    if oversampling is None:
        kind = distribution(name)
        if kind.widths:
            return named_width(shape, kind.widths[0]) or 0
        oversampling = 1.0 if kind.orthogonal or kind.at_most_n else default
        least = n + kind.spare if kind.spare else 0
    return max(least, math.ceil(oversampling * n))  # floating point: 1.1 * 50 is above 55
