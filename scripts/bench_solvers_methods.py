"""Each solver and its alternatives on one system, for `bench_solvers.py`.

Every method returns x and what it tells of itself: iterations, precision, a note.
"""

from __future__ import annotations

import math
import time
from unittest import mock

import torch
from scipy.sparse.linalg import LinearOperator, lsmr

from bnrecon.runtime.precision import FLOAT32, FLOAT64
from bnrecon.solvers import SolverSpec, dense, iterative, solve
from bnrecon.solvers.krylov import cgls


def products(system, name: str) -> dict:
    """The bare pair of matrix products of one iteration, each in its fastest memory layout."""
    dtype = getattr(torch, name)
    multiply = torch._int_mm if dtype == torch.int8 else torch.matmul
    B, A = factors(system.operator, dtype)
    BT, Y = B.T.contiguous(), torch.randn(len(B), A.shape[1], device=A.device).to(dtype)
    layouts = {
        "M x": (lambda: multiply(B, A), lambda: multiply(BT.T, A)),
        "M^T y": (lambda: multiply(BT, Y), lambda: multiply(B.T, Y)),
    }
    best = {}
    for product, ways in layouts.items():
        best[product] = math.inf
        for way in ways:
            for _ in range(20):
                started = time.perf_counter()
                result = way()
                float(result[0, 0])
                best[product] = min(best[product], time.perf_counter() - started)
    return {
        "seconds": sum(best.values()),
        "note": ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in best.items()),
    }


def factors(operator, dtype: torch.dtype):
    """B (m, c1) and A (c1, c0); in int8 only the signs of both."""
    if dtype == torch.int8:
        return operator.second.sign().to(dtype).contiguous(), operator.first.sign().to(dtype)
    return operator.second.to(dtype).contiguous(), operator.first.to(dtype)


def registered(system, name: str):
    """A solver of the project, its LU timed apart."""
    name, _, precision = name.partition(" ")
    factorize, apart = dense.factorize, {}

    def timed(matrix):
        started = time.perf_counter()
        factors = factorize(matrix)
        if matrix.is_cuda:
            torch.cuda.synchronize()
        apart["LU seconds"] = time.perf_counter() - started
        if matrix.dtype == torch.float32:
            alone = torch.linalg.lu_solve(*factors, system.rhs[:, None].float())[:, 0].double()
            apart["LU residual"] = float(
                (system.rhs - system.operator.matvec(alone)).norm() / system.rhs.norm()
            )
        return factors

    schedule = iterative.precision_schedule
    if precision == "float32":
        schedule = lambda _device: [FLOAT32, FLOAT64]  # noqa: E731 (a stand-in for a function)
    with (
        mock.patch.object(dense, "factorize", timed),
        mock.patch.object(iterative, "precision_schedule", schedule),
    ):
        found = solve(system, SolverSpec(name))
    report = found.report
    note = report.precision
    if apart:
        note += f"; the LU alone {apart['LU seconds']:.1f} s"
        note += f", residual {apart['LU residual']:.1e}" if "LU residual" in apart else ""
    return found.scale, {
        "iterations": report.iterations,
        "forecast": report.memory,
        "arithmetic": report.precision,
        "note": note,
        **apart,
    }


def library_solve(system, name: str):
    """torch.linalg.solve on M, formed."""
    operator = system.operator.to(FLOAT32 if name.endswith("32") else FLOAT64)
    return torch.linalg.solve(operator.dense(), system.rhs.to(operator.dtype)).double(), {}


def plain_cgls(system, _name: str):
    """CGLS in float64, nothing else."""
    size = system.rhs.norm()
    x, steps = cgls(system.operator, system.rhs / size, 0.5e-10, 10_000)
    return size * x, {"iterations": steps}


def scipy_lsmr(system, _name: str):
    """scipy.sparse.linalg.lsmr on the operator in float64, which runs on the CPU."""
    operator, device = system.operator, system.rhs.device

    def through(product):
        return lambda v: product(torch.from_numpy(v.ravel().copy()).to(device)).cpu().numpy()

    wrapped = LinearOperator(
        operator.shape, through(operator.matvec), through(operator.rmatvec), dtype="float64"
    )
    found = lsmr(
        wrapped, system.rhs.cpu().numpy(), atol=1e-15, btol=5e-11, conlim=0, maxiter=10_000
    )
    return torch.from_numpy(found[0]).to(device), {"iterations": int(found[2])}


METHODS = {
    "torch.linalg.solve float32": library_solve,
    "torch.linalg.solve float64": library_solve,
    "plain CGLS float64": plain_cgls,
    "scipy lsmr float64": scipy_lsmr,
}
