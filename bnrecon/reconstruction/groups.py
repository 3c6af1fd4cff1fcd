"""The groups of a grouped convolution: drawn one by one, solved together if small."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import torch

from bnrecon.features.pair import Features
from bnrecon.operators.system import System
from bnrecon.runtime.digests import content_key
from bnrecon.runtime.options import labelled
from bnrecon.solvers.base import LinAlgError, Solution
from bnrecon.solvers.report import SolverReport
from bnrecon.solvers.solving import solve
from bnrecon.solvers.spec import SolverSpec

TOGETHER_BYTES = 32 * 2**20  # of the matrices that are solved in one call
SMALL_BYTES = 2**20  # of one group's matrix: up to it, the overhead of a separate call dominates


def group_number(layer: int, group: int) -> int:
    """Return the number that a group's features are drawn by; the first group has the layer's.

    >>> group_number(3, 0), group_number(3, 1)
    (3, 4294967299)
    """
    return layer + (group << 32)


def joined(parts: Iterable[torch.Tensor | None]) -> torch.Tensor:
    """Concatenate the parts of all groups; a single part is not copied."""
    tensors = [part for part in parts if part is not None]
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def joined_digest(groups: Sequence[Features]) -> str:
    """The digest of a layer's features; for a single group, that group's digest."""
    digests = [features.digest() for features in groups]
    return digests[0] if len(digests) == 1 else content_key({"groups": digests})


Problem: TypeAlias = tuple[System, SolverSpec]


def solve_groups(problems: Iterable[Problem]) -> Solution:
    """Solve the systems of all groups of a layer.

    If the user chose no solver, small dense systems are solved together by least squares. Those
    that miss the tolerance are solved again one by one, which also tells why.
    """
    solutions: list[Solution] = []
    block: list[Problem] = []
    for system, spec in problems:
        rows, columns = system.operator.shape
        size = 8 * rows * columns
        if spec.name != "auto" or rows > columns or not 0 < size <= SMALL_BYTES:
            solutions.append(_solve_one(system, spec, len(solutions)))
            continue
        block.append((system, spec))
        if len(block) * size >= TOGETHER_BYTES:
            solutions += _solve_block(block, len(solutions))
            block = []
    if block:
        solutions += _solve_block(block, len(solutions))
    return join_solutions(solutions)


def join_solutions(solutions: Sequence[Solution]) -> Solution:
    """Concatenate the scales of all groups; the report is the weakest group's."""
    scale = torch.cat([solution.scale for solution in solutions])
    return Solution(scale, weakest([solution.report for solution in solutions]))


def together_bytes(rows: int, columns: int, groups: int) -> int:
    """Bytes of the systems that are solved in one call: separate, stacked and factorized."""
    size = 8 * rows * columns
    small = rows <= columns and size <= SMALL_BYTES
    return 3 * min(groups * size, TOGETHER_BYTES + size) if small else 0


def _solve_block(block: list[Problem], before: int) -> list[Solution]:
    """The minimum-norm solutions of small systems of one size."""
    started = time.perf_counter()
    matrices = torch.stack([system.operator.dense() for system, _ in block])
    rhs = torch.stack([system.rhs for system, _ in block])
    scales = _minimum_norm(matrices, rhs)
    errors, size = (matrices @ scales[..., None])[..., 0] - rhs, rhs.norm(dim=1)
    residuals = (errors.norm(dim=1) / torch.where(size > 0, size, 1)).tolist()
    seconds = (time.perf_counter() - started) / len(block)
    reason = f"the small systems of {len(block)} groups are solved together"
    norm = "minimum norm of the scales"
    report = SolverReport("least_squares", 0.0, 0, seconds, True, norm, "float64", reason)
    solved = zip(block, scales, residuals, strict=True)
    return [
        Solution(scale, dataclasses.replace(report, relative_residual=residual))
        if residual <= spec.tolerance
        else _solve_one(system, spec, number)
        for number, ((system, spec), scale, residual) in enumerate(solved, start=before)
    ]


def _minimum_norm(matrices: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    """The solutions (groups, c1) with one correction; NaN if the factorization fails."""
    # Not gelsy, twice as fast: PyTorch 2.10 gives it stale pivots (pytorch/pytorch#187411).
    driver = "gelsd" if rhs.device.type == "cpu" else "gels"
    x = torch.zeros_like(matrices[:, :1].mT)
    try:
        for _ in range(2):
            residuals = rhs[..., None] - matrices @ x
            x = x + torch.linalg.lstsq(matrices, residuals, driver=driver).solution
    except LinAlgError:
        x.fill_(torch.nan)
    return x[..., 0]


def _solve_one(system: System, spec: SolverSpec, group: int) -> Solution:
    with labelled(f"group {group}"):
        return solve(system, spec)


def weakest(reports: Sequence[SolverReport]) -> SolverReport:
    """One report for all groups: that of the group with the largest residual.

    It has converged only if all have; seconds are summed.
    """
    failed = [report for report in reports if not report.converged]
    worst = max(failed or reports, key=lambda report: report.relative_residual)
    return dataclasses.replace(
        worst,
        iterations=max(report.iterations for report in reports),
        seconds=sum(report.seconds for report in reports),
        at_limit=any(report.at_limit for report in reports),
        memory=max(report.memory for report in reports),
    )
