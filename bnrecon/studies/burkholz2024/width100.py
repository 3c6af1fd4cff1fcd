"""Targets of width 100 (Burkholz 2024, Sect. 3.2), which are as accurate as the paper's best."""

from bnrecon.reproduction.parts import only, read_reported
from bnrecon.studies.burkholz2024.run_tables.run_table import list_rows, run_table
from bnrecon.studies.burkholz2024.run_tables.verdicts import Reported

REPORTED = read_reported(__package__)["width100"]

PART = run_table(
    __file__,
    list_rows(
        "target",
        ("target=vgg18", "target.width=100", "features=he_normal", "solver=auto"),
        {
            "smoke": ("scale=smoke", "target.width=6"),
            "laptop": ("scale=laptop", "train.epochs=2", "train.warmup_epochs=0.5", "seeds=[0]"),
            "paper": ("scale=paper",),
        },
        {"CIFAR-10": ("data=cifar10",), "CIFAR-100": ("data=cifar100",)},
        {name: Reported.printed(**printed, width=100) for name, printed in REPORTED.items()},
    ),
    excerpt=only(drop=["reported: target", "reported: rebuilt", "max. error as assembled"]),
)
