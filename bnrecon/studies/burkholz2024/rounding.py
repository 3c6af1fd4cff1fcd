"""Rounding in the real source network at minimum width (Burkholz 2024, Sect. 3.1)."""

from bnrecon.reproduction.parts import only, read_text
from bnrecon.studies.burkholz2024.run_tables import row_numbers
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable, list_rows

PAPER = ("target.activation=leaky_relu", "features=orthogonal", "solver=lu_lbfgs")
AUTO = ("features=he_normal", "solver=auto")
REAL, COLLAPSED = "evaluate=source", "evaluate=collapsed"

PART = RunTable(
    read_text(__file__),
    list_rows(
        "activation, features, solver, test images through",
        ("target=vgg18", "data=cifar10", "features.width=minimum"),
        {
            "smoke": ("scale=smoke",),
            "laptop": ("scale=laptop", "target.width=16"),
            "paper": ("scale=paper", "target.width=64"),
        },
        {
            "leaky_relu, orthogonal, lu_lbfgs, the real source": (*PAPER, REAL),
            "leaky_relu, orthogonal, lu_lbfgs, its collapsed form": (*PAPER, COLLAPSED),
            "relu, he_normal, auto, the real source": (*AUTO, REAL),
            "relu, he_normal, auto, its collapsed form": (*AUTO, COLLAPSED),
        },
    ),
    excerpt=only(drop=["accuracy: target", *row_numbers.ERRORS, "layers not converged"]),
)
