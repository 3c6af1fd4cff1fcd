"""One LU for all targets that are rebuilt from the same features."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import torch

from bnrecon.operators.base import Operator
from bnrecon.operators.eliminated import Eliminated
from bnrecon.operators.system import System
from bnrecon.runtime.errors import RunError
from bnrecon.runtime.hardware import exact_float32
from bnrecon.runtime.precision import FLOAT32
from bnrecon.solvers import dense, factorization
from bnrecon.solvers.base import Answer, LinAlgError, Solution, Unsuitable, require_memory
from bnrecon.solvers.register import lookup
from bnrecon.solvers.solving import check_finite, solve_with
from bnrecon.solvers.spec import SolverSpec

NAME = "shared_lu"


class SharedFactorization:
    """The LU of a feature matrix in float32, for targets of any weights (Burkholz 2024, Lemma 2.1).

    At width n the system of every target is M itself. At the minimum width n - c2 + 1 the system
    for one target alone (``Eliminated``) contains the ratios of the target's weights. Without
    pivots Lemma 2.1 says M x = D t: D (n, c2) has the target's row i in the rows of output i, and
    t_i = 1 / outer_i. So let E be n - c1 random columns of M's norm, and factorize

        K = [M, E],   K [x; s] = D t + R,

    which contains no target. With Z = K^-1 D, Lemma 2.1 requires s = 0: for the last n - c1 rows T
    of Z and g of K^-1 R, T t = -g, a system of n - c1 unknowns as one t is fixed. This is the
    eliminated system, solved exactly, with right-hand side R (rows at pivots are 0, and the ratios
    in D are those to the pivot). In float32 it is a preconditioner (``approximate_inverse``), and
    GMRES in float64 through the operator corrects each target's solution, as in the solver
    ``refined``.

    Per target this takes c2 right-hand sides and one more per step, of 2 n² flops each; the LU
    takes (2/3) n³.

    Args:
        matrix: M (n, c1), in float64.
        targets: how many share it; each report has its part of the factorization's seconds.

    Raises:
        Unsuitable: n is too large for a dense LU.
        RunError: memory is insufficient, or K is exactly singular.

    >>> from bnrecon.construction.two_layer import linear_system
    >>> from bnrecon.operators.khatri_rao import KhatriRao
    >>> _ = torch.manual_seed(0)
    >>> matrix = KhatriRao(torch.randn(34, 12).double(), torch.randn(34, 3).double())  # n - c2 + 1
    >>> shared = SharedFactorization(matrix)
    >>> systems = [linear_system(matrix, torch.randn(3, 12).double()) for _ in range(2)]
    >>> [shared.solve(system).report.converged for system in systems]
    [True, True]
    """

    def __init__(self, matrix: Operator, targets: int = 1):
        n, self.width = matrix.shape
        if self.width > n:
            raise Unsuitable(f"{self.width} features for {n} equations: solver=matrix_free, alone")
        lookup("refined").require(n, n, False, matrix.device)
        self.matrix = matrix
        started = time.perf_counter()
        require_memory(dense.refined_memory(n, n), matrix.device, NAME, "solve the targets alone")
        generator = torch.Generator().manual_seed(0)
        extra = torch.randn(n - self.width, n, dtype=torch.float64, generator=generator)
        size = matrix.column_norms().double().median() / n**0.5
        self.extra = extra.to(matrix.device) * size
        try:
            with exact_float32():
                joined = matrix.to(FLOAT32).dense(more=n - self.width)  # K, stored by columns
                joined[:, self.width :] = self.extra.T
                self.factors = factorization.factorize(joined)
        except LinAlgError:
            raise RunError(f"the {n} x {n} matrix of features is singular") from None
        self._inverse = dense.approximate_inverse(self._product, self.factors)
        self._seconds = (time.perf_counter() - started) / targets

    def solve(self, system: System, spec: SolverSpec | None = None) -> Solution:
        """Solve one target's system, whose ``system.matrix`` is M.

        Returns:
            The scales (c1,) in float64 and the report, as from ``solve``.
        """
        check_finite(system)
        solver = dataclasses.replace(
            lookup("refined"), name=NAME, solve=self._answer, memory=lambda *_: 0
        )
        solution = solve_with(solver, system, spec or SolverSpec(), None)
        seconds = solution.report.seconds + self._seconds
        return Solution(solution.scale, dataclasses.replace(solution.report, seconds=seconds))

    def _answer(self, system: System, spec: SolverSpec) -> Answer:
        name = "LU in float32 for several targets"
        if not isinstance(system.operator, Eliminated):
            return dense.preconditioned_gmres(system, spec, self._inverse, name)
        # The error of the composed weight may be a hundred times the residual of an eliminated
        # system, and corrections by K end just below the tolerance.
        further = dataclasses.replace(spec, tolerance=spec.tolerance / 100)
        inverse = self._bordered(system.operator)
        answer = dense.preconditioned_gmres(system, further, inverse, name)
        residual = (system.rhs - system.operator.matvec(answer.x)).norm()
        missed = bool(residual > spec.tolerance / 10 * system.rhs.norm())
        return answer._replace(at_limit=answer.at_limit and missed)

    def _bordered(self, operator: Eliminated) -> Callable[[torch.Tensor], torch.Tensor]:
        """The approximate inverse of a target's eliminated system, by K."""
        outputs, entries = operator.row_shape
        ratios = operator.ratios.double().clone()
        ratios[operator.at_pivots] = 1  # only the pivot of a zero output is free
        D = torch.diag_embed(ratios.T).permute(1, 0, 2).reshape(outputs * entries, outputs)
        Z = self._inverse(D)
        Z = Z + self._inverse(D - self._product(Z))  # its error affects every step
        T = Z[self.width :]
        unknown = torch.ones(outputs, dtype=torch.bool, device=D.device)
        if operator.skip is None:
            unknown[operator.fixed] = False
        small = torch.linalg.lu_factor(T[:, unknown])

        def precondition(vector: torch.Tensor) -> torch.Tensor:
            table = torch.zeros(outputs, entries, dtype=torch.float64, device=vector.device)
            t = torch.zeros(outputs, dtype=torch.float64, device=vector.device)
            if operator.skip is None:
                table[operator.others], t[operator.fixed] = vector[:-1], vector[-1]
            else:
                table[operator.others] = vector
            y = self._inverse(table.reshape(-1))
            g = y[self.width :] + T @ t
            t[unknown] = -torch.linalg.lu_solve(*small, g[:, None])[:, 0]
            return y[: self.width] + Z[: self.width] @ t

        return precondition

    def _product(self, vectors: torch.Tensor) -> torch.Tensor:
        """K times (n,) or (n, k), in float64."""
        return self.matrix.matvec(vectors[: self.width]) + self.extra.T @ vectors[self.width :]
