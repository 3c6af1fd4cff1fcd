"""Tables 1 and 2 of Burkholz 2024: runs by activation, feature distribution, way and target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bnrecon.reproduction.options import option_name, refuse_compared
from bnrecon.studies.burkholz2024.run_tables.row import Grid, Row
from bnrecon.studies.burkholz2024.run_tables.verdicts import Reported

__all__ = [
    "CAPTION",
    "GRID",
    "LAPTOP",
    "NAMES",
    "WAYS",
    "Targets",
    "of_205_epochs",
    "reconstruction_rows",
]

# How the same targets are rebuilt. From one to the next one thing changes: the solver, the width.
WAYS: Mapping[str, Sequence[str]] = {
    "paper": ("solver=lu_lbfgs", "features.width=minimum"),  # LU, then LBFGS (Sect. 3.1)
    "minimum": ("solver=auto", "features.width=minimum"),
    "exact": ("solver=auto",),  # 1.5 n features
}
NAMES = {  # by what the command line calls them
    "paper": "paper's solver, n - c2 + 1 features",
    "minimum": "bnrecon, n - c2 + 1 features",
    "exact": "bnrecon, 1.5 n features",
}
COMPARED = (
    "features",
    "features.name",
    "features.width",
    "solver",
    "solver.name",
    "target",
    "target.activation",
    "data",
    "data.name",
)
CAPTION = (
    "The same targets are rebuilt in three ways: with the minimum width, n - c2 + 1 features, by "
    "the paper's solver (LU, then LBFGS, in float32) and by bnrecon (solver=auto), and with 1.5 n "
    "features by bnrecon. The command line calls them paper, minimum and exact. solver=auto "
    "chooses a method by the system: at minimum width an LU that is corrected in float64, with "
    "1.5 n features a matrix-free iteration. From the second way to the third the method "
    "therefore changes with the width, as does the number of images that go through the real "
    "source. Settings of LBFGS that the paper does not print are bnrecon's, which let it go on as "
    "far as float32 does; with PyTorch's own it ends at the LU's solution (parts accuracy and "
    "solver_steps). Between the two layers "
    "of a source there is no activation here (Theorem 2.2); the row's activation follows the "
    "second. The paper does not say whether its sources had one there, too (Theorem 2.4): then "
    "its losses for tanh and sigmoid hold that approximation as well (part epsilon). The paper's "
    "targets have width 64; losses of other widths stand beside its own and are not compared, "
    "since the error of its solver grows with n (part accuracy). The paper's ± are \"0.95 standard "
    'confidence intervals" of three repetitions, taken as printed; it does not say by which '
    "quantile (1.96, or Student's t, 2.2 times as wide). In print the table has 16 cells; the "
    "column cells says how many were run here, of how many. A sparse feature of a colour image is "
    "wholly zero with probability (1/2)³, one in eight, so that at minimum width the first "
    "layer's system is singular as the paper describes it; such features are drawn again "
    "(features redrawn), and kept with features.strict=true: the LU then ends at a singular matrix "
    "(erratum 33). Theorem 2.2 is for independent and "
    "continuous entries: orthogonal weights are not independent, sparse ones not continuous."
)
PAPERS_EPOCHS = 205  # of scale=paper (Sect. 3)
GRID = Grid(rows="target", columns="features", by=("target width", "rebuilt by"))


@dataclass(frozen=True)
class Targets:
    """The targets of one width and training seed, and which cells of the table they are for.

    Args:
        width: of the targets.
        activations: the rows of the paper's table; all of them where empty.
        features: its columns; all of them where empty.
        seed: of the training.
        overrides: of the runs.
        scale: of their training; that of the table where empty.
        ways: how they are rebuilt.
    """

    width: int
    activations: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    seed: int = 0
    overrides: tuple[str, ...] = ()
    scale: str = ""
    ways: tuple[str, ...] = tuple(WAYS)

    def labels(self, activation: str) -> dict[str, str]:
        """What tells a target from the others.

        >>> Targets(32, seed=1).labels("relu")
        {'target width': '32', 'target': 'relu, training seed 1'}
        """
        seed = f", training seed {self.seed}" if self.seed else ""
        epochs = f", {PAPERS_EPOCHS} epochs" if self.scale == "paper" else ""
        return {"target width": str(self.width), "target": f"{activation}{seed}{epochs}"}

    def options(self, scale: str, way: str) -> tuple[str, ...]:
        """The overrides of a run."""
        # For the exact runs of width 32 "auto" takes the collapsed form by itself. They were the
        # first, and an option that is given would change their names.
        collapsed = scale != "smoke" and (scale, way, self.width) != ("laptop", "exact", 32)
        return (
            f"scale={self.scale or scale}",
            f"target.width={self.width}",
            *((f"train.seed={self.seed}",) if self.seed else ()),
            *(("evaluate=collapsed",) if collapsed else ()),
            *_source_images(scale, way),
            *self.overrides,
        )


def _source_images(scale: str, way: str) -> tuple[str, ...]:
    """How many images the real source sees: more where its float32 rounding may change classes."""
    if scale == "laptop" and way != "exact":
        return ("source_images=256",)
    return ("source_images=1024",) if scale == "paper" else ()


def of_205_epochs(activations: tuple[str, ...], ways: tuple[str, ...] = tuple(WAYS)) -> Targets:
    """The paper's own targets, in one of its columns, from one source seed."""
    return Targets(64, activations, ("he_normal",), 0, ("seeds=[0]",), "paper", ways)


# In the order in which they are computed. By the ways of the minimum width a target of width 64
# takes 80 minutes or more on two cores, with 1.5 n features 3.
LAPTOP: Mapping[str, Sequence[Targets]] = {
    "cifar10": (
        Targets(16),
        Targets(32, ("relu",)),
        Targets(32, ("relu",), ("he_normal",), seed=1),
        Targets(32, ("relu",), ("he_normal",), seed=2),
        Targets(32, ("leaky_relu", "tanh", "sigmoid")),
        Targets(64, ("relu",), ("he_normal",), overrides=("seeds=[0]",)),
        of_205_epochs(("relu",)),
        of_205_epochs(("leaky_relu", "tanh", "sigmoid"), ways=("exact",)),
    ),
    "cifar100": (Targets(32), of_205_epochs((), ways=("exact",))),
}
WIDTH = 64  # of the paper's targets
SMOKE = (Targets(4, overrides=("seeds=[0,1]",)),)
PAPER = (Targets(WIDTH),)


def reconstruction_rows(
    data: str, reported: Mapping[str, Any], impossible: Sequence[str] = ()
) -> Callable[[str, Sequence[str]], list[Row]]:
    """The rows of Table 1 or 2: each cell of the table, rebuilt in each way from the same target.

    Args:
        data: the images.
        reported: the table's ``target`` and ``rebuilt`` accuracies, as printed.
        impossible: the activations whose printed accuracies cannot be right.

    Returns:
        A function of the scale and the user's options, for ``RunTable``. ``target.width`` chooses
        among the widths of the scale; a width that is not among them replaces them.
    """

    def rows(scale: str, options: Sequence[str]) -> list[Row]:
        refuse_compared(options, COMPARED)
        return [
            Row(
                targets.labels(activation)
                | {"features": name, "solver": way, "rebuilt by": NAMES[way]},
                (
                    "target=vgg18",
                    f"data={data}",
                    *((f"target.activation={activation}",) if activation != "relu" else ()),
                    f"features={name}",
                    *WAYS[way],
                    *targets.options(scale, way),
                    *options,
                ),
                Reported.printed(reported["target"][activation], *printed, width=WIDTH),
                activation not in impossible,
            )
            for targets in _chosen(scale, data, options)
            for activation, row in reported["rebuilt"].items()
            if not targets.activations or activation in targets.activations
            for name, printed in row.items()
            if not targets.features or name in targets.features
            for way in targets.ways
        ]

    return rows


def _chosen(scale: str, data: str, options: Sequence[str]) -> Sequence[Targets]:
    """The targets of a scale, among which the user's options choose."""
    found = {"smoke": SMOKE, "laptop": LAPTOP[data], "paper": PAPER}[scale]
    given = {option_name(option): option.partition("=")[2] for option in options}
    if "train.seed" in given:
        found = tuple(targets for targets in found if targets.seed == 0)
    if "train.epochs" in given:  # would tell the targets of another scale from nothing
        found = tuple(targets for targets in found if not targets.scale)
    if (width := given.get("target.width", "")).isdecimal():
        of_width = tuple(targets for targets in found if targets.width == int(width))
        return of_width or (Targets(int(width), overrides=found[0].overrides),)
    return found
