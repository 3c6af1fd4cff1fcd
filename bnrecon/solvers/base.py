"""What every solver is given and gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch

from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.hardware import available_memory
from bnrecon.runtime.units import format_bytes
from bnrecon.solvers.report import SolverReport


class Answer(NamedTuple):
    """What a solver returns; a plain ``(x, iterations)`` does too.

    Args:
        x: (c1,), the scales.
        iterations: 0 for direct solvers.
        norm: which of many solutions this is, where that differs by system.
        precision: what the products ran in.
        at_limit: whether it stopped only because it had made as many iterations as it may.
    """

    x: torch.Tensor
    iterations: int
    norm: str | None = None
    precision: str = ""
    at_limit: bool = False


Solve = Callable[..., Answer]  # (system, spec), and a checkpoint where it can go on from one
LinAlgError = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # missing in torch's stubs


@dataclass(frozen=True)
class Solution:
    """The scales x (c1,) in float64, and how they were found."""

    scale: torch.Tensor
    report: SolverReport


class Unsuitable(UserError):
    """The solver does not fit this system: its shape, its features or its size."""


def require_square(rows: int, columns: int, _orthogonal: bool) -> None:
    """Raise ``Unsuitable`` unless there are as many unknowns as equations."""
    if rows != columns:
        raise Unsuitable(
            f"this solver needs a square system, this one has {rows} equations and {columns} "
            "unknowns: take width=maximum (c1 = n) or width=minimum (c1 = n - c2 + 1), or "
            "solver=matrix_free"
        )


def require_memory(need: int, device: torch.device, name: str, instead: str) -> None:
    """Raise ``RunError`` where a solver's memory is not free."""
    free = available_memory(device)
    if need > free:
        raise RunError(
            f"solver {name} needs {format_bytes(need)} on {device.type}, "
            f"{format_bytes(free)} are free; {instead}"
        )
