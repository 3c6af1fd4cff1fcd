"""One layer at minimum width, solved step by step, and what is left after each step."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pandas as pd
import torch

from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.operators.system import Scales, System
from bnrecon.runtime.hardware import exact_float32
from bnrecon.runtime.precision import FLOAT32
from bnrecon.solvers.base import Answer
from bnrecon.solvers.dense import corrected, factorize
from bnrecon.solvers.lbfgs import PYTORCHS, minimize
from bnrecon.solvers.spec import SolverSpec
from bnrecon.studies.burkholz2024.single_layers import SingleLayer, single_layer

__all__ = [
    "DEFAULTS",
    "LBFGS",
    "LBFGS_IN_FLOAT64",
    "LU",
    "REFINED",
    "STEPS",
    "measure",
    "measure_defaults",
]

LU, LBFGS, LBFGS_IN_FLOAT64, REFINED = "LU", "LU, LBFGS", "LU, LBFGS in float64", "refined"
DEFAULTS = "LU, LBFGS with PyTorch's settings"
STEPS = (LU, DEFAULTS, LBFGS, LBFGS_IN_FLOAT64, REFINED)
Solutions: TypeAlias = Iterator[tuple[str, Answer, float]]  # step, solution, seconds
SMALL = 2304  # equations up to which there are singular values, and LBFGS in float64


def measure(layer: str, seed: int, limit: int, options: Sequence[str]) -> pd.DataFrame:
    """A row for each step of the solution of one layer's system.

    ``error`` is ‖W' - W‖ / ‖W‖ composed in float64, ``assembled_error`` composed in float32,
    ``cancellation`` ‖outer ∘ |M| |inner|‖ / ‖W‖, by which float32 multiplies its rounding at worst.

    Args:
        layer: its name in the target.
        seed: of the he_normal features, of minimum width.
        limit: iterations of LBFGS, at most.
        options: overrides of the run whose target is rebuilt.
    """
    part = single_layer(layer, seed, None, options)
    solutions = _solutions(part.system, SolverSpec("lu_lbfgs", max_iterations=limit))
    return _rows(part, solutions, {"layer": layer, "seed": seed, "limit": limit})


def measure_defaults(layer: str, seed: int, options: Sequence[str]) -> pd.DataFrame:
    """The row of one more step: LBFGS with PyTorch's settings, on the mean squared error.

    ``lu_error`` is the error of the LU that it starts from. The other arguments and columns are
    those of ``measure``.
    """
    part = single_layer(layer, seed, None, options)
    limit = PYTORCHS.iterations
    found = _rows(
        part, _with_defaults(part.system), {"layer": layer, "seed": seed, "limit": limit}
    ).set_index("step")
    lu_error = found.loc[LU, "error"]
    return found.loc[[DEFAULTS]].assign(lu_error=lu_error).reset_index()


def _rows(part: SingleLayer, solutions: Solutions, about: Mapping[str, Any]) -> pd.DataFrame:
    shape, system = part.target.shape, part.system
    common = {"n": shape.equations, "width": shape.minimum_width, **about, **_spectrum(system)}
    rows = []
    for step, answer, seconds in solutions:
        scales = system.scales(answer.x.double())
        error, assembled = part.errors(scales)
        rows.append(
            common
            | {"step": step, "error": error, "assembled_error": assembled}
            | {"cancellation": _cancellation(system, scales)}
            | {"iterations": answer.iterations, "at_limit": answer.at_limit, "seconds": seconds}
        )
    return pd.DataFrame(rows)


def _with_defaults(system: System) -> Solutions:
    """The float32 LU, and what LBFGS with PyTorch's settings makes of it."""
    operator, rhs = system.operator.to(FLOAT32), system.rhs.float()
    with exact_float32():
        started = time.perf_counter()
        start = torch.linalg.lu_solve(*factorize(operator.dense()), rhs[:, None])[:, 0]
        yield LU, Answer(start, 0), time.perf_counter() - started
        started = time.perf_counter()
        spec = SolverSpec("lu_lbfgs_defaults")
        found = minimize(operator.matvec, operator.rmatvec, rhs, start, spec, PYTORCHS)
        yield DEFAULTS, found, time.perf_counter() - started


def _solutions(system: System, spec: SolverSpec) -> Solutions:
    """Step, solution and seconds of one float32 LU, in place, and of what starts from it.

    The LU's solution is that of ``torch.linalg.solve``, bit for bit, in half the memory.
    """
    operator, rhs = system.operator.to(FLOAT32), system.rhs.float()
    with exact_float32():
        started = time.perf_counter()
        factors = factorize(operator.dense())
        start = torch.linalg.lu_solve(*factors, rhs[:, None])[:, 0]
        yield LU, Answer(start, 0), time.perf_counter() - started
        started = time.perf_counter()
        found = minimize(operator.matvec, operator.rmatvec, rhs, start, spec)
        yield LBFGS, found, time.perf_counter() - started
        started = time.perf_counter()
        if len(rhs) <= SMALL:
            exact = system.operator
            found = minimize(exact.matvec, exact.rmatvec, system.rhs, start.double(), spec)
            yield LBFGS_IN_FLOAT64, found, time.perf_counter() - started
            started = time.perf_counter()
        found = corrected(system, SolverSpec("refined"), factors)
        yield REFINED, found, time.perf_counter() - started


def _spectrum(system: System) -> dict[str, float]:
    """Condition and smallest singular value of a small system; not a number for others."""
    if system.operator.shape[0] > SMALL:
        return {"condition": float("nan"), "smallest_singular_value": float("nan")}
    values = torch.linalg.svdvals(system.operator.dense())
    smallest = float(values[-1])
    return {"condition": float(values[0]) / smallest, "smallest_singular_value": smallest}


def _cancellation(system: System, scales: Scales) -> float:
    matrix = system.matrix
    if not isinstance(matrix, KhatriRao):
        raise TypeError("the features have a pattern")
    sizes = KhatriRao(matrix.transposed.abs(), matrix.first.abs(), matrix.precision).matvec(
        scales.inner.abs()
    )
    table = sizes.reshape(len(scales.outer), -1) * scales.outer.abs()[:, None]
    return float(table.norm() / system.weight.norm())
