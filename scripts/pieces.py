"""The pieces of work that want a GPU, in order, each with the images that it needs.

This file and its neighbours `parts.py` and `gpu_slice.py` need nothing but Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["PIECES", "Piece", "chosen"]

STUDY = "burkholz2024"


@dataclass(frozen=True)
class Piece:
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
RESNET18 = (
    "target=resnet18",
    "data=cifar10",
    "features=sign",
    "seeds=[0]",
    "train.epochs=5",
    "train.warmup_epochs=1",
)

TOGETHER = ("--jobs", "4")  # a target of width 64 leaves most of a large GPU idle

PIECES = (
    Piece("table1-targets", ("cifar10",), ("train_targets.py", STUDY, "table1", *TOGETHER)),
    Piece("table2-targets", ("cifar100",), ("train_targets.py", STUDY, "table2", *TOGETHER)),
    Piece("table1-exact", ("cifar10",), ("study", STUDY, "table1", "exact")),
    Piece("table2-exact", ("cifar100",), ("study", STUDY, "table2", "exact")),
    Piece("table1-paper", ("cifar10",), ("study", STUDY, "table1", "paper")),
    Piece("table2-paper", ("cifar100",), ("study", STUDY, "table2", "paper")),
    Piece("table1-minimum", ("cifar10",), ("study", STUDY, "table1", "minimum")),
    Piece("table2-minimum", ("cifar100",), ("study", STUDY, "table2", "minimum")),
    Piece("scratch", ("cifar10",), ("study", STUDY, "scratch")),
    Piece("rest", ("cifar10", "cifar100"), ("study", STUDY)),
    Piece(
        "resnet18",
        ("cifar10",),
        ("time_layers.py", *RESNET18),
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
    known = [piece.name for piece in PIECES]
    for name in names:
        if name not in known:
            raise ValueError(f"piece {name}: there is none; allowed: {', '.join(known)}")
    return [piece for piece in PIECES if not names or piece.name in names]
