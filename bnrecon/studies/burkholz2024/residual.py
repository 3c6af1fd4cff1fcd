"""Residual source blocks, and residual targets (Burkholz 2024, Sect. 2.2, Eq. 3)."""

from bnrecon.reproduction.parts import read_text
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable, list_rows

VGG = ("target=vgg18", "target.width=16")
RESNET = ("target=resnet18", "target.width=8")
MINIMUM = "features.width=minimum"
OUTER, INNER = "features.skip=outer", "features.skip=inner"
DROPPED = ["max. layer error", "max. error as assembled"]

PART = RunTable(
    read_text(__file__),
    list_rows(
        "target, skip connection, features",
        ("data=cifar10", "features=he_normal", "solver=auto"),
        {
            "smoke": ("scale=smoke", "target.width=4"),
            "laptop": ("scale=laptop", "evaluate=collapsed"),
            "paper": ("scale=paper",),
        },
        {
            "VGG18, none, n - c2 + 1": (*VGG, MINIMUM),
            "VGG18, outer normalization, n - c2": (*VGG, OUTER, MINIMUM),
            "VGG18, inner normalization, n - c2 + 1": (*VGG, INNER, MINIMUM),
            "VGG18, outer normalization, 1.5 n": (*VGG, OUTER),
            "VGG18, inner normalization, 1.5 n": (*VGG, INNER),
            "ResNet-18, none, 1.5 n": RESNET,
            "ResNet-18, outer normalization, 1.5 n": (*RESNET, OUTER),
            "ResNet-18, inner normalization, 1.5 n": (*RESNET, INNER),
        },
    ),
    # At minimum width, and one ResNet-18
    excerpt=lambda x: x.iloc[[0, 1, 2, -1]].drop(columns=DROPPED, errors="ignore"),
)
