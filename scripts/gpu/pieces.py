"""The pieces of work that want a GPU, in order, each with the images that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

STUDY = "burkholz2024"


class Piece(NamedTuple):
    """A piece of work.

    Args:
        name: what ``--pieces`` and ``PIECES=`` call it.
        images: the data sets that it needs.
        command: a script with its arguments, or ``study`` with a study and its parts.
        marker: of a script that remembers nothing itself, the file below the outputs folder that
            keeps what it prints.
    """

    name: str
    images: tuple[str, ...]
    command: tuple[str, ...]
    marker: str | None = None


# torchvision's ResNet-18 at its full width, trained for a few epochs, every layer to 1e-10.
RESNET18 = "target=resnet18 data=cifar10 features=sign seeds=[0] train.epochs=5"
RESNET18 += " train.warmup_epochs=1"
TABLES = (("table1", "cifar10"), ("table2", "cifar100"))
TRAIN = "gpu/train_targets.py"  # four at a time: one of width 64 leaves most of a large GPU idle

PIECES = (
    Piece("recipe", ("cifar10",), ("study", STUDY, "recipe", "jobs=4")),  # which targets to train
    *(Piece(f"{t}-targets", (data,), (TRAIN, STUDY, t, "--jobs", "4")) for t, data in TABLES),
    *(
        Piece(f"{table}-{solver}", (data,), ("study", STUDY, table, solver))
        for solver in ("exact", "paper", "minimum")
        for table, data in TABLES
    ),
    Piece("scratch", ("cifar10",), ("study", STUDY, "scratch")),
    Piece("rest", ("cifar10", "cifar100"), ("study", STUDY)),
    Piece(
        "resnet18",
        ("cifar10",),
        ("time_layers.py", *RESNET18.split()),
        "solvers/resnet18-{device}/bench.json",
    ),
    Piece("training-benchmark", (), ("bench_training.py",), "training/{device}.txt"),
    Piece("solver-benchmark", (), ("bench_solvers.py",)),
)


def chosen(names: Sequence[str]) -> list[Piece]:
    """The pieces of these names, in their order; all of them where there is none.

    Raises:
        ValueError: there is no such piece.
    """
    allowed = [piece.name for piece in PIECES]
    for name in names:
        if name not in allowed:
            raise ValueError(f"piece {name}: there is none; allowed: {', '.join(allowed)}")
    return [piece for piece in PIECES if not names or piece.name in names]
