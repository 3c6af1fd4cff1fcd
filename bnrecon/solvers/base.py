"""The input and output of every solver."""

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
    """What a solver returns; a plain ``(x, iterations)`` is accepted too.

    Args:
        x: (c1,), the scales.
        iterations: 0 for direct solvers.
        norm: which of many solutions this is, if that depends on the system.
        precision: of the products.
        at_limit: whether it made as many iterations as allowed.
    """

    x: torch.Tensor
    iterations: int
    norm: str | None = None
    precision: str = ""
    at_limit: bool = False


Solve = Callable[..., Answer]  # (system, spec), and a checkpoint if it can resume
LinAlgError = torch.linalg.LinAlgError  # type: ignore[attr-defined]  # missing in torch's stubs
LESS_MEMORY = "use solver=matrix_free with oversampling=1.5, or features=id_cond"


@dataclass(frozen=True)
class Solution:
    """The scales x (c1,) in float64, and the solver's report."""

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
    """Raise ``RunError`` if a solver's memory is not free."""
    free = available_memory(device)
    if need > free:
        raise RunError(
            f"solver {name} needs {format_bytes(need)} on {device.type}, "
            f"{format_bytes(free)} are free; {instead}"
        )
