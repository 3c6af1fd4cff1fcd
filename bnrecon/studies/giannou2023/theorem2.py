"""Theorem 2: narrow, deep sources with skip connections, and where float64 ends them."""

from __future__ import annotations

from collections.abc import Sequence

import mpmath
import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from bnrecon.construction.relu_target import LinearTarget, read_relu_network
from bnrecon.construction.skip_source import skip_chain, skip_chain_of
from bnrecon.features.portable_random import Stream
from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.giannou2023.theorem1 import random_target

__all__ = ["DIGITS", "PART", "draw", "rebuild", "solve_in_digits", "summarize"]

# (d, k): deep to shallow, and pairs of which k does not divide d.
SETTINGS = {
    "smoke": ((3, 1), (4, 2), (5, 3)),
    "laptop": (
        *((4, k) for k in (1, 2, 4)),
        *((8, k) for k in (1, 2, 3, 4, 8)),
        *((12, k) for k in (1, 2, 3, 4, 6, 12)),
        *((16, k) for k in (1, 2, 3, 4, 8, 16)),
        *((24, k) for k in (2, 3, 4, 6, 12)),
        *((32, k) for k in (4, 8, 12, 16)),
    ),
}
SETTINGS["paper"] = SETTINGS["laptop"]
SEEDS = {"smoke": 2, "laptop": 3, "paper": 10}
DIGITS = 100  # of the arithmetic that stands for exact numbers
MOST_UNKNOWNS = 24  # systems up to this size are solved in so many digits, too

CAPTION = (
    "One target layer of spectral norm 1 as ceil(d / k) layers of width d k and a last one. Error: "
    "the largest ||P diag(γ) W A - W*|| / ||W*|| of a block, in float64 by LU, and after two "
    "corrections by iterative refinement; where the systems are small, the same with scales found "
    f"in {DIGITS} digits, and with these rounded to float64. Condition: the largest of a block's "
    "system. Geometric means over seeds. In print L_1 = Γ_1 W_1 z_1 lacks its A_1, the product of "
    "the inductive step runs from i - 1 where it has to run from i + 1, and A is once k x dk and "
    "once dk x k."
)


def rebuild(side: int, block: int, seeds: int, digits: int) -> pd.DataFrame:
    """One row per seed; the errors in many digits only where the systems are small."""
    rows = []
    for seed in range(seeds):
        target = random_target(side, 1, seed)
        refined = skip_chain(target, block, seed=seed, conditions=True)
        plain = skip_chain(target, block, seed=seed, refinements=0)
        row = {
            "side": side,
            "block": block,
            "seed": seed,
            "layers": -(-side // block),
            "width": side * block,
            "error": max(segment.relative_error for segment in plain.segments),
            "refined_error": max(segment.relative_error for segment in refined.segments),
            "functional_error": refined.functional_error,
            "condition": max(segment.condition or 0.0 for segment in refined.segments),
            "digits_error": float("nan"),
            "rounded_error": float("nan"),
        }
        if side * block <= MOST_UNKNOWNS:
            weight = read_relu_network(target)[0].weight
            exact, rounded = solve_in_digits(weight, block, seed, digits)
            row |= {"digits_error": exact, "rounded_error": rounded}
        rows.append(row)
    return pd.DataFrame(rows)


def solve_in_digits(
    weight: torch.Tensor, block: int, seed: int, digits: int
) -> tuple[float, float]:
    """The same systems in ``digits`` decimal digits.

    Args:
        weight: W* (m, k).
        block: size of the blocks.
        seed: the seed of the chain.
        digits: of the arithmetic.

    Returns:
        The largest relative error of a block with the scales as they are, and with all scales
        rounded to float64.
    """
    target = LinearTarget("", weight, torch.zeros(len(weight), dtype=torch.float64))
    chain = skip_chain_of(target, block, Stream(seed, 0))
    sizes = chain.sizes
    with mpmath.workdps(digits):
        last = _matrix(chain.out.weight)
        mixes = [_matrix(segment.mix.weight) for segment in chain.segments()]
        before = [
            mix * _matrix(segment.lift.weight)
            for mix, segment in zip(mixes, chain.segments(), strict=True)
        ]
        columns = [_matrix(part) for part in weight[:, chain.columns].split(sizes, dim=1)]
        after, scales = last, list[list[mpmath.mpf]]()
        for i in reversed(range(len(sizes))):
            scales.insert(0, _solve(after, before[i], columns[i]))
            after = _scaled(after, scales[0]) * mixes[i]
        exact = _largest_error(last, mixes, before, columns, scales)
        rounded = [[mpmath.mpf(float(value)) for value in scale] for scale in scales]
        return exact, _largest_error(last, mixes, before, columns, rounded)


def _matrix(tensor: torch.Tensor) -> mpmath.matrix:
    return mpmath.matrix(tensor.tolist())


def _scaled(matrix: mpmath.matrix, scale: list[mpmath.mpf]) -> mpmath.matrix:
    """Its columns times the scales."""
    return mpmath.matrix(
        [[matrix[i, j] * scale[j] for j in range(matrix.cols)] for i in range(matrix.rows)]
    )


def _solve(after: mpmath.matrix, before: mpmath.matrix, wanted: mpmath.matrix) -> list[mpmath.mpf]:
    """γ of P diag(γ) Q = W*.

    LU, or the shortest solution where a smaller block has fewer equations.
    """
    rows = [
        [after[i, c] * before[c, j] for c in range(after.cols)]
        for i in range(wanted.rows)
        for j in range(wanted.cols)
    ]
    system = mpmath.matrix(rows)
    right = mpmath.matrix([wanted[i, j] for i in range(wanted.rows) for j in range(wanted.cols)])
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
        difference = _scaled(after, scales[i]) * before[i] - columns[i]
        error = mpmath.mnorm(difference, "f") / mpmath.mnorm(columns[i], "f")
        largest = max(largest, float(error))
        after = _scaled(after, scales[i]) * mixes[i]
    return largest


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per d and k."""
    return [
        Task(
            f"d = {side}, k = {block}",
            rebuild,
            {"side": side, "block": block, "seeds": SEEDS[scale], "digits": DIGITS},
        )
        for side, block in SETTINGS[scale]
    ]


def _geometric(values: pd.Series) -> float:
    return float(np.exp(np.log(values.clip(lower=1e-300)).mean()))


def _mean(group: pd.DataFrame, column: str) -> str:
    values = group[column].dropna()
    return f"{_geometric(values):.0e}" if len(values) else ""


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per d and k."""
    lines = []
    for (side, block), group in rows.groupby(["side", "block"], sort=True):
        lines.append(
            {
                "d": side,
                "k": block,
                "width d k": int(group["width"].iloc[0]),
                "layers": int(group["layers"].iloc[0]) + 1,
                "condition": _mean(group, "condition"),
                "float64": _mean(group, "error"),
                "refined": _mean(group, "refined_error"),
                f"{DIGITS} digits": _mean(group, "digits_error"),
                "rounded to float64": _mean(group, "rounded_error"),
                "seeds": len(group),
            }
        )
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Error and condition against the number of layers."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.6))
    for (side, group), colour in zip(rows.groupby("side", sort=True), PALETTE, strict=False):
        by_depth = group.groupby("layers")
        errors = by_depth["refined_error"].apply(_geometric)
        left.semilogy(errors.index, errors, "o-", color=colour, label=f"d = {side}")
        conditions = by_depth["condition"].apply(_geometric)
        right.semilogy(conditions.index, conditions, "o-", color=colour)
    left.set_xlabel("number of blocks, ceil(d / k)")
    left.set_ylabel("largest relative error of a block")
    right.set_xlabel("number of blocks, ceil(d / k)")
    right.set_ylabel("largest condition number of a system")
    right.axhline(1 / np.finfo(float).eps, color="grey", linestyle=":")
    left.legend()
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Theorem 2 in many digits and in float64, and where the printed one is false."""
    exact = rows["digits_error"].max()
    depths = rows.groupby("layers")["refined_error"].max()
    held = [int(depth) for depth, error in depths.items() if error < 1e-6]
    lost = [int(depth) for depth, error in depths.items() if error > 1e-2]
    until = f"below 1e-6 for up to {max(held)} blocks" if held else "nowhere below 1e-6"
    after = f", and lost (above 0.01) from {min(lost)} blocks on" if lost else ""
    return [
        Claim(
            "Theorem 2",
            "A random network of width d k and depth ceil(d / k) + 1 with skip connections "
            "computes a target layer.",
            "confirmed" if exact < 1e-50 else "not confirmed",
            f"largest error of a block {exact:.0e} in {DIGITS} digits, up to {MOST_UNKNOWNS} "
            f"unknowns; in float64 {until}{after}.",
        ),
        Claim(
            "Theorem 2",
            "It does so for every target with ||W*|| <= 1.",
            "wrong in print",
            "a block of zeros in W* has zero scales as its only solution and cuts off all earlier "
            "layers (erratum 17); inputs that a layer does not read get no block here.",
        ),
    ]


PART = Experiment(
    "Theorem 2",
    "Narrow, deep random networks with skip connections",
    tasks,
    summarize,
    CAPTION,
    draw,
    claims=claims,
)
