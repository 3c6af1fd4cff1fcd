"""Theorem 2's systems in many decimal digits, where rounding plays no part."""

from __future__ import annotations

import itertools

import mpmath
import torch

from bnrecon.construction.relu_target import LinearTarget
from bnrecon.construction.skip_source import skip_chain_of
from bnrecon.features.portable_random import Stream


def solve_in_digits(
    weight: torch.Tensor, block: int, seed: int, digits: int, layer: int = 0
) -> tuple[float, float]:
    """Solve the systems of W* (m, k), the target's ``layer`` (from 0), in ``digits`` digits.

    Returns:
        The largest relative error of a block with the scales as solved, and with all scales rounded
        to float64.
    """
    target = LinearTarget("", weight, torch.zeros(len(weight), dtype=torch.float64))
    chain = skip_chain_of(target, block, Stream(seed, layer))
    sizes = chain.sizes
    with mpmath.workdps(digits):
        last = _matrix(chain.out.weight)
        segments = chain.segments()
        mixes = [_matrix(segment.mix.weight) for segment in segments]
        lifts = [_matrix(segment.lift.weight) for segment in segments]
        before = [mix * lift for mix, lift in zip(mixes, lifts, strict=True)]
        columns = [_matrix(part) for part in weight[:, chain.columns].split(sizes, dim=1)]
        after, scales = last, list[list[mpmath.mpf]]()
        for i in reversed(range(len(sizes))):
            scales.insert(0, _solve(after, before[i], columns[i]))
            after = after * mpmath.diag(scales[0]) * mixes[i]
        exact = _largest_error(last, mixes, before, columns, scales)
        rounded = [[mpmath.mpf(float(value)) for value in scale] for scale in scales]
        return exact, _largest_error(last, mixes, before, columns, rounded)


def _matrix(tensor: torch.Tensor) -> mpmath.matrix:
    return mpmath.matrix(tensor.tolist())


def _solve(after: mpmath.matrix, before: mpmath.matrix, target: mpmath.matrix) -> list[mpmath.mpf]:
    """γ of P diag(γ) Q = W*: by LU, or the shortest if a smaller block has fewer equations."""
    entries = list(itertools.product(range(target.rows), range(target.cols)))
    columns = range(after.cols)
    system = mpmath.matrix([[after[i, c] * before[c, j] for c in columns] for i, j in entries])
    right = mpmath.matrix([target[entry] for entry in entries])
    if system.rows == system.cols:
        return list(mpmath.lu_solve(system, right))
    return list(system.T * mpmath.lu_solve(system * system.T, right))


def _largest_error(
    last: mpmath.matrix,
    mixes: list[mpmath.matrix],
    before: list[mpmath.matrix],
    columns: list[mpmath.matrix],
    scales: list[list[mpmath.mpf]],
) -> float:
    after, largest = last, 0.0
    for i in reversed(range(len(scales))):
        difference = after * mpmath.diag(scales[i]) * before[i] - columns[i]
        error = mpmath.mnorm(difference, "f") / mpmath.mnorm(columns[i], "f")
        largest = max(largest, float(error))
        after = after * mpmath.diag(scales[i]) * mixes[i]
    return largest
