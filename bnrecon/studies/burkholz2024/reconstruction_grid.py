"""Tables 1 and 2 of Burkholz 2024: a run for each activation, feature distribution and solver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bnrecon.reproduction.options import refuse_compared
from bnrecon.reproduction.run_table import Reported, Row

__all__ = ["CAPTION", "reconstruction_rows"]

# "paper": LU, then LBFGS, at minimum width (Sect. 3.1). "exact": what bnrecon chooses.
SOLVERS = {
    "exact": ("solver=auto",),
    "paper": ("solver=lu_lbfgs", "features.width=minimum"),
}
# At laptop scale the paper's solver, a dense LU, is kept to width 16, where a layer takes seconds;
# at width 64 it takes minutes. evaluate=collapsed: 64 images through the real source network.
SCALES: Mapping[str, Mapping[str, Sequence[str]]] = {
    "smoke": {
        "exact": ("scale=smoke", "seeds=[0,1]"),
        "paper": ("scale=smoke", "seeds=[0,1]"),
    },
    "laptop": {
        "exact": ("scale=laptop", "target.width=32"),
        "paper": ("scale=laptop", "target.width=16", "evaluate=collapsed"),
    },
    "paper": {
        "exact": ("scale=paper", "target.width=64"),
        "paper": ("scale=paper", "target.width=64"),
    },
}
COMPARED = (
    "features",
    "features.name",
    "target",
    "target.activation",
    "data",
    "data.name",
)
CAPTION = (
    'Solver "paper" is the paper\'s: LU, then LBFGS, in float32 at minimum width. Solver "exact" '
    "is solver=auto at 1.5 n features."
)


def reconstruction_rows(
    data: str, reported: Mapping[str, Any], impossible: Sequence[str] = ()
) -> Callable[[str, Sequence[str]], list[Row]]:
    """The 32 rows of Table 1 or 2.

    Args:
        data: the images.
        reported: the table's ``target`` and ``rebuilt`` accuracies, as printed.
        impossible: the activations whose printed accuracies cannot be right.

    Returns:
        A function of the scale and the user's options, for ``RunTable``.
    """

    def rows(scale: str, options: Sequence[str]) -> list[Row]:
        refuse_compared(options, COMPARED)
        return [
            Row(
                {"target": activation, "features": features, "solver": solver},
                (
                    "target=vgg18",
                    f"data={data}",
                    *((f"target.activation={activation}",) if activation != "relu" else ()),
                    f"features={features}",
                    *SOLVERS[solver],
                    *SCALES[scale][solver],
                    *options,
                ),
                Reported.printed(reported["target"][activation], *printed),
                activation not in impossible,
            )
            for solver in SOLVERS
            for activation, row in reported["rebuilt"].items()
            for features, printed in row.items()
        ]

    return rows
