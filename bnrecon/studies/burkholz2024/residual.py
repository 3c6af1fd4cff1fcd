"""Residual source blocks, and residual targets (Burkholz 2024, Sect. 2.2, Eq. 3)."""

from __future__ import annotations

from bnrecon.studies.burkholz2024.run_tables.run_table import list_rows, run_table

VGG = ("target=vgg18", "target.width=16")
RESNET = ("target=resnet18", "target.width=8")
MINIMUM = "features.width=minimum"
INSIDE, BEHIND = "features.skip=outer", "features.skip=inner"
DROPPED = ["max. layer error", "max. error as assembled"]

PART = run_table(
    __file__,
    list_rows(
        "target, skip connection of the source",
        ("data=cifar10", "features=he_normal", "solver=auto"),
        {
            "smoke": ("scale=smoke", "target.width=4"),
            "laptop": ("scale=laptop", "evaluate=collapsed"),
            "paper": ("scale=paper",),
        },
        {
            "VGG18, none, minimum width": (*VGG, MINIMUM),
            "VGG18, inside the normalization, n - c2": (*VGG, INSIDE, MINIMUM),
            "VGG18, behind it, n - c2 + 1": (*VGG, BEHIND, MINIMUM),
            "VGG18, inside, 1.5 n": (*VGG, INSIDE),
            "VGG18, behind, 1.5 n": (*VGG, BEHIND),
            "ResNet-18, none, 1.5 n": RESNET,
            "ResNet-18, inside, 1.5 n": (*RESNET, INSIDE),
            "ResNet-18, behind it, 1.5 n": (*RESNET, BEHIND),
        },
    ),
    # At minimum width, and one ResNet-18
    excerpt=lambda x: x.iloc[[0, 1, 2, -1]].drop(columns=DROPPED, errors="ignore"),
)
