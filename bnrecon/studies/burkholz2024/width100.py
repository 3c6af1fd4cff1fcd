"""Targets of width 100 (Burkholz 2024, Sect. 3.2), which are as accurate as the paper's best."""

from bnrecon.reproduction.parts import only, read_reported, read_text
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable, list_rows
from bnrecon.studies.burkholz2024.run_tables.verdicts import Reported

REPORTED = read_reported(__package__)["width100"]

PART = RunTable(
    read_text(__file__),
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
