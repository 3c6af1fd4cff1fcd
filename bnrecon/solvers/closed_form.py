"""The closed form for id_cond and ortho_cond, M^-1 = M^T (Random features, Sect. 3)."""

from __future__ import annotations

import torch

from bnrecon.operators.eliminated import Eliminated
from bnrecon.operators.system import System
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.solvers.base import Answer, Unsuitable
from bnrecon.solvers.spec import SolverSpec


def memory(_rows: int, columns: int) -> int:
    """Bytes: two vectors."""
    return 16 * columns


def check(rows: int, columns: int, orthogonal: bool) -> None:
    """Raise ``Unsuitable`` unless M is square and orthogonal."""
    if not orthogonal or rows != columns:
        raise Unsuitable(
            "solver=closed_form solves id_cond and ortho_cond features, whose M is orthogonal; "
            "use solver=auto for others"
        )


def closed_form(system: System, _spec: SolverSpec) -> Answer:
    """The solution x = M^T vec(W), as M^T M = I at width n, with three corrections.

    ortho_cond's factors are orthogonal to float32 rounding only: each correction x += M^T (b - M x)
    multiplies the error by about 1e-6.

    At id_cond's minimum width (Eq. 3) all outputs share feature 0 for their first tap and input,
    and w_i1 = γ2_i γ1_0, w_ij = γ2_i γ1_ij: γ1_0 = 1, γ1_ij = w_ij / w_i1, up to one common factor.
    """
    if isinstance(system.operator, Eliminated):
        return Answer(_minimum_width(system, system.operator), 0)
    x = system.matrix.rmatvec(system.rhs)
    for _ in range(3):
        left = system.rhs - system.matrix.matvec(x)
        x = x + system.matrix.rmatvec(left)
    # The residual before the last correction; rounding of float32 features leaves far less.
    if not float(left.norm()) <= 1e-3 * float(system.rhs.norm()):
        raise UserError(
            "M^T M is not the identity, which register_features(..., orthogonal=True) promises for "
            "these features: leave it out"
        )
    return Answer(x, 0)


def _minimum_width(system: System, eliminated: Eliminated) -> torch.Tensor:
    weight = system.weight
    shared = weight[:, 0]
    live = weight.abs().amax(1) > 0
    if bool((live & (shared == 0)).any()):
        raise RunError(
            "id_cond at minimum width cannot reach a target whose outputs have a zero at the first "
            "input and tap (a pathological target of Burkholz 2024, Thm 2.2); use width=maximum"
        )
    ratios = weight / torch.where(shared == 0, 1, shared)[:, None]
    ratios = torch.where(live[:, None], ratios, torch.zeros_like(weight))
    private = torch.ones_like(weight, dtype=torch.bool)
    private[1:, 0] = False  # the features that Eq. 3 leaves out; feature 0 itself is the shared one
    ratios[0, 0] = 1.0
    x = ratios[private]
    table = system.matrix.matvec(x).reshape(eliminated.row_shape)
    reached = table[eliminated.fixed, eliminated.pivots[eliminated.fixed]]
    return x * (system.rhs[-1] / torch.where(reached == 0, 1, reached))
