"""Diagnose why a system has no exact solution: what is singular about it, and M's rank."""

from __future__ import annotations

import torch

from bnrecon.operators.base import Operator
from bnrecon.operators.system import System

LARGEST_RANK = 1000  # rows of M up to which singular values are computed: a second


def diagnose(system: System) -> str:
    """Say in one line why a system cannot be solved; empty if no reason is found.

    It checks for fewer unknowns than equations, all-zero features, features that repeat others up
    to a factor, weights that no feature reaches, and, up to 1,000 equations, the numerical rank.

    >>> from bnrecon.construction.two_layer import linear_system
    >>> from bnrecon.operators.khatri_rao import KhatriRao
    >>> B = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    >>> M = KhatriRao(B, torch.ones(2, 2, dtype=torch.float64))
    >>> diagnose(linear_system(M, torch.ones(1, 2, dtype=torch.float64)))
    '1 of 2 features repeats another up to a factor; rank 1 of 2 equations'
    """
    operator = system.operator
    rows, columns = operator.shape
    causes = []
    if columns < rows:
        causes.append(f"{columns} unknowns for {rows} equations")
    norms = operator.column_norms()
    if dead := int((norms == 0).sum()):
        causes.append(f"{dead} of {columns} features {'is' if dead == 1 else 'are'} all-zero")
    if repeated := repeated_columns(operator):
        causes.append(
            f"{repeated} of {columns} features "
            f"{'repeats another' if repeated == 1 else 'repeat others'} up to a factor"
        )
    # The weight of random scales is 0 where no feature reaches, elsewhere only by chance.
    generator = torch.Generator().manual_seed(0)
    scales = torch.randn(columns, dtype=torch.float32, generator=generator)
    reached = system.matrix.matvec(scales.to(system.rhs)) != 0
    if unreached := int((~reached & (system.weight.reshape(-1) != 0)).sum()):
        causes.append(
            f"{unreached} weights that are not zero "
            f"{'is' if unreached == 1 else 'are'} reached by no feature"
        )
    if rows <= LARGEST_RANK:
        rank = numerical_rank(operator)
        if rank == rows:
            return ""  # features to spare: what is dead or repeated is not missed
        causes.append(f"rank {rank} of {rows} equations")
    elif columns - dead - repeated < rows:
        causes.append(f"rank at most {columns - dead - repeated} of {rows} equations")
    return "; ".join(causes)


def numerical_rank(operator: Operator) -> int:
    """The number of M's singular values above max(rows, columns) · 2e-16 of the largest."""
    return int(torch.linalg.matrix_rank(operator.dense()))


def repeated_columns(operator: Operator) -> int:
    """Count columns that are multiples of others: two random products agree to 1e-12."""
    norms = operator.column_norms()
    generator = torch.Generator().manual_seed(0)
    probes = torch.randn(operator.shape[0], 2, dtype=torch.float64, generator=generator)
    live = norms > 0
    marks = operator.rmatvec(probes.to(operator.device, operator.dtype))[live] / norms[live, None]
    marks = marks * marks[:, :1].sign()
    marks = marks[marks[:, 0].argsort()]
    least = 1e-12 * marks[1:].abs().clamp_min(1e-6)
    return int(((marks[1:] - marks[:-1]).abs() < least).all(1).sum())
