"""Options of the features: distribution, width, activation and skip connection."""

from __future__ import annotations

from dataclasses import dataclass

from bnrecon.runtime.errors import UserError
from bnrecon.runtime.options import check_fields, option

ACTIVATIONS = ("identity", "relu", "leaky_relu", "tanh", "sigmoid")
SKIPS = ("none", "inner", "outer")
PRUNINGS = ("magnitude", "refit", "iterative", "l1")
STORAGES = ("auto", "memory", "regenerate", "disk")


@dataclass
class FeatureSpec:
    """The frozen random pair of every layer.

    Set at most one of ``oversampling``, ``excess`` and ``width``. By default a layer has 1.5 n
    features, where n = c2 · c0 · kh · kw is its number of equations (``sign``,
    ``sparse_he_normal``, ``er_sign``: at least n + 64), and n with ``id_cond``, ``ortho_cond``,
    ``sparse_id_cond`` and solvers of square systems.

    Args:
        name: a distribution in ``bnrecon.features.DISTRIBUTIONS``.
        oversampling: c1 / n.
        excess: c1 - n.
        width: c1 as a number, ``minimum`` (n - c2 + 1, Burkholz 2024, Theorem 2.2; with skip=outer
            n - c2, except for id_cond) or ``maximum`` (n, Theorem 2.3).
        allow_below_minimum: accept fewer features than the theorems need; layers are then only
            approximated.
        activation: between A and B (Theorem 2.4), one of ``ACTIVATIONS``.
        epsilon: with tanh and sigmoid, the largest error of a layer's output before rounding. The
            rounding of a sigmoid in float32 can exceed it by far; the layer has then not converged.
        margin: with any activation, the factor by which inputs may exceed the largest one seen.
        skip: where to add a frozen skip connection (Eq. 3): ``inner``, after the second
            normalization, or ``outer``, before it.
        strict: keep all-zero features of sparse distributions, which are otherwise drawn again.
        storage: ``memory`` keeps the features; ``regenerate`` draws those of ``he_normal``,
            ``he_uniform`` and ``sign`` again at each use, one tile at a time; ``disk`` puts them in
            a temporary file (``TMPDIR`` chooses its folder). ``auto`` takes the first of the three
            that fits. Results are the same up to rounding.
        keep: share of a layer's c1 features that keep their scales; the others' are 0. With fewer
            than n of them, the layer is only approximated.
        pruning: which are kept, one of ``PRUNINGS``: see ``bnrecon.solvers.pruning.prune``.

    Raises:
        UserError: a value is not allowed; the message starts with the field.

    >>> FeatureSpec("id_cond", width="minimum").oversampling is None
    True
    >>> FeatureSpec(oversampling=0)
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: oversampling=0: must be above 0
    """

    name: str = option("he_normal", "distribution of the frozen weights", file_name=True)
    oversampling: float | None = option(None, "features per equation, c1/n", above=0)
    excess: int | None = option(None, "features beyond the number of equations, c1 - n")
    width: str | None = option(
        None, "features of a layer, c1: a number, minimum (n - c2 + 1) or maximum (n)"
    )
    allow_below_minimum: bool = option(
        False, "accept fewer features than the minimum width; layers are then approximated"
    )
    activation: str = option(
        "identity", "activation after the first source layer", allowed=ACTIVATIONS
    )
    epsilon: float = option(
        1e-3, "with tanh and sigmoid: largest error of a layer's output", above=0
    )
    margin: float = option(
        2.0,
        "with an activation: factor by which inputs may exceed the largest seen",
        above=0,
        at_most=1e6,
    )
    skip: str = option(
        "none",
        "frozen skip connection beside each pair: inner joins after the second normalization, "
        "outer before it",
        allowed=SKIPS,
    )
    strict: bool = option(False, "keep all-zero features of sparse distributions")
    storage: str = option(
        "auto",
        "storage of the features: in memory, drawn again at each use (regenerate), or in a "
        "temporary file (disk); auto: the first of these that fits",
        allowed=STORAGES,
    )
    keep: float | None = option(
        None, "share of the features that keep their scales; the others' are 0", above=0, at_most=1
    )
    pruning: str | None = option(
        None,
        "which features keep their scales: the largest contributions, with the same scales "
        "(magnitude) or refitted ones (refit); those that remain after rounds of refitting "
        "(iterative); or those of the solution of least L1 norm (l1)",
        allowed=PRUNINGS,
    )

    def __post_init__(self) -> None:
        if self.width is not None:
            self.width = str(self.width)  # library users may pass a number
        check_fields(self)
        ways = ("oversampling", "excess", "width")
        widths = {name: value for name in ways if (value := getattr(self, name)) is not None}
        if len(widths) > 1:
            values = ", ".join(f"{name}={value}" for name, value in widths.items())
            raise UserError(
                f"{values}: give one of oversampling (c1/n), excess (c1 - n) and width (c1)"
            )
        number = self.width is not None and self.width.isdecimal() and int(self.width) > 0
        if self.width not in (None, "minimum", "maximum") and not number:
            raise UserError(
                f"width={self.width}: must be a number of features above 0, minimum or maximum"
            )
        self._check_pruning()
        if self.skip == "outer" and self.activation in ("tanh", "sigmoid"):
            raise UserError(
                f"skip=outer: not possible with activation={self.activation}; the second "
                "normalization undoes the first one's small scale, which the skip connection "
                "lacks: take skip=inner or activation=relu"
            )

    def kept(self, width: int) -> int:
        """How many of ``width`` features keep their scales: at least one.

        >>> FeatureSpec(keep=0.6, pruning="l1").kept(24), FeatureSpec().kept(24)
        (14, 24)
        """
        return width if self.keep is None else max(1, round(self.keep * width))

    def _check_pruning(self) -> None:
        if self.keep is not None and self.pruning is None:
            raise UserError(f"keep={self.keep}: give pruning={'|'.join(PRUNINGS)} too")
        if self.keep is None and self.pruning is not None:
            raise UserError(
                f"pruning={self.pruning}: give keep=SHARE too, above 0 and at most 1, or no pruning"
            )
        if self.keep is not None and self.width == "minimum":
            raise UserError(
                f"keep={self.keep}: the minimum width has no feature to spare; take "
                "width=maximum or oversampling=1.5"
            )
