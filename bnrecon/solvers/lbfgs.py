"""The paper's solvers: LBFGS, alone or after a float32 LU (Burkholz 2024, Sect. 3.1). Faithful, not improved."""

from __future__ import annotations

import torch

from bnrecon.construction.two_layer import System
from bnrecon.solvers.base import SolverOptions, register_solver
from bnrecon.solvers.dense import check_dense

__all__ = ["lbfgs", "lu_lbfgs"]

HISTORY = 100


@register_solver("lbfgs", memory=lambda rows, columns: 4 * columns * (2 * HISTORY + 8), norm="the one LBFGS reaches from zero")
def lbfgs(system: System, options: SolverOptions) -> tuple[torch.Tensor, int]:
    """``torch.optim.LBFGS`` from zero on the mean squared error, float32."""
    return _minimize(system, torch.zeros(system.operator.shape[1], dtype=torch.float32, device=system.rhs.device), options)


@register_solver("lu_lbfgs", memory=lambda rows, columns: 4 * 4 * rows * columns, check=check_dense, square=True)
def lu_lbfgs(system: System, options: SolverOptions) -> tuple[torch.Tensor, int]:
    """``torch.linalg.solve`` in float32, then LBFGS in float32 from there."""
    start = torch.linalg.solve(system.operator.to(torch.float32).dense(), system.rhs.to(torch.float32))
    return _minimize(system, start, options)


def _minimize(system: System, start: torch.Tensor, options: SolverOptions) -> tuple[torch.Tensor, int]:
    """Minimize mean((M x - b)²) by LBFGS: lr 1, history 100, strong Wolfe line search, at most 2,000 iterations.

    The paper states none of these. The error and its gradient 2 M^T r / n go through the operator in float32. Both are taken
    relative to mean(b²), so that PyTorch's absolute tolerances mean the same for every layer.
    """
    operator, rhs = system.operator.to(torch.float32), system.rhs.to(torch.float32)
    size = (rhs @ rhs).clamp_min(torch.finfo(torch.float32).tiny)
    x = start.clone()
    optimizer = torch.optim.LBFGS(
        [x], lr=1, max_iter=options.max_iterations or 2000, history_size=HISTORY, line_search_fn="strong_wolfe",
        tolerance_grad=1e-12, tolerance_change=1e-15,
    )  # fmt: skip

    def closure() -> torch.Tensor:
        residual = operator.matvec(x) - rhs
        x.grad = 2 * operator.rmatvec(residual) / size
        return residual @ residual / size

    optimizer.step(closure)
    return x, optimizer.state[x]["n_iter"]
