"""What residual source layers train for one target layer (Burkholz 2024, Sect. 2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F

from bnrecon.construction.residual_blocks import residual_blocks
from bnrecon.reproduction.experiment import Claim, Experiment, Task, no_overrides

__all__ = ["PART", "measure"]

SHAPES = ((8, 8, 3), (16, 16, 1), (8, 4, 3))  # c2, c0 and the kernel's side
BLOCKS = (1, 2, 4)  # and one for each output, the narrowest
SEEDS = {"smoke": 2, "laptop": 5, "paper": 20}
PAPERS_FACTOR = 4  # "at least by a factor of 4"
NO_ERROR = 1e-9  # of the largest output, in float64
SIDE, IMAGES = 10, 4
EMPTY, FILLED = "zeros", "anything"


def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
    """One task for each shape of the target layer."""
    return [
        Task(f"{c2}x{c0}, {side}x{side}", measure, arguments(c2, c0, side, SEEDS[scale]))
        for c2, c0, side in SHAPES
    ]


def arguments(outputs: int, inputs: int, side: int, seeds: int) -> dict[str, Any]:
    """Of ``measure``."""
    return {"outputs": outputs, "inputs": inputs, "side": side, "seeds": seeds}


def measure(outputs: int, inputs: int, side: int, seeds: int) -> pd.DataFrame:
    """Errors and numbers of scales of random layers that are rebuilt by residual blocks.

    Args:
        outputs: c2.
        inputs: c0.
        side: of the target's kernel.
        seeds: draws of target, features and images.

    Returns:
        One row for each draw, number of blocks and content of the output channels before: the
        largest error of the state (x, W x), its largest entry, the scales, and the widest block.
    """
    rows = []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        size = (outputs, inputs, side, side)
        target = torch.randn(size, generator=generator, dtype=torch.float64)
        size = (IMAGES, inputs + outputs, SIDE, SIDE)
        state = torch.randn(size, generator=generator, dtype=torch.float64)
        x = state[:, :inputs]
        wanted = torch.cat([x, F.conv2d(x, target, padding="same")], 1)
        empty = torch.cat([x, torch.zeros_like(state[:, inputs:])], 1)
        for before, start in ((EMPTY, empty), (FILLED, state)):
            for count in sorted({*BLOCKS, outputs}):
                blocks = residual_blocks(target, count, seed, overwrite=before == FILLED)
                found = start
                for block in blocks:
                    found = block(found)
                rows.append(
                    {
                        "target": f"{outputs}x{inputs}, {side}x{side}",
                        "equations": target.numel(),
                        "counted": (inputs + outputs) ** 2 / (inputs * outputs),
                        "seed": seed,
                        "before": before,
                        "blocks": count,
                        "widest": max(len(block.inner) for block in blocks),
                        "scales": sum(block.scales for block in blocks),
                        "error": float((found - wanted).abs().max()),
                        "largest": float(wanted.abs().max()),
                    }
                )
    return pd.DataFrame(rows)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line for each target, content before and number of blocks."""
    lines = []
    for (target, before, blocks), group in rows.groupby(["target", "before", "blocks"], sort=False):
        first = group.iloc[0]
        lines.append(
            {
                "target": target,
                "n": first["equations"],
                "output channels before": before,
                "blocks": blocks,
                "widest layer": first["widest"],
                "scales": first["scales"],
                "over two layers": times_two_layers(group).iloc[0],
                "(c0 + c2)² / (c0 c2)": first["counted"],
                "largest error": (group["error"] / group["largest"]).max(),
                "draws": len(group),
            }
        )
    return pd.DataFrame(lines)


def times_two_layers(rows: pd.DataFrame) -> pd.Series:
    """Scales over the n + 1 of two layers of minimum width (Theorem 2.2)."""
    return rows["scales"] / (rows["equations"] + 1)


def claims(rows: pd.DataFrame) -> list[Claim]:
    """The paper's least factor: contradicted where some number of blocks always takes less."""
    factor, error = times_two_layers(rows), rows["error"] / rows["largest"]
    empty, narrowest = rows["before"] == EMPTY, rows.groupby("target")["blocks"].transform("max")
    fewest = factor.groupby([rows["target"], rows["before"]]).min()
    fewer = bool((fewest < PAPERS_FACTOR).all() and (error <= NO_ERROR).all())

    def span(chosen: pd.Series) -> str:
        return f"{factor[chosen].min():.2f} to {factor[chosen].max():.2f}"

    one, most = rows["blocks"] == 1, rows["blocks"] == narrowest
    return [
        Claim(
            "Sect. 2.4, residual source layers",
            "Residual source layers of at least twice the width need more trainable parameters "
            f"than two layers, 'at least by a factor of {PAPERS_FACTOR}' (here c2 <= 2 c0).",
            "contradicted" if fewer else "open",
            f"one block of c0 + c2 channels takes (x, 0) to (x, W x) with {span(empty & one)} "
            f"times the scales of two layers, and (x, r) with any r with {span(~empty & one)} "
            f"times; c2 blocks, the narrowest, with {span(empty & most)} and "
            f"{span(~empty & most)} times. "
            f"Largest error {error.max():.0e} of the largest output (draws of each: "
            f"{rows['seed'].nunique()}). Fewer than n scales never do for almost every target "
            "(erratum 35).",
        )
    ]


PART = Experiment(
    "Sect. 2.4",
    "What residual source layers train for one target layer",
    tasks,
    summary,
    "Random targets (c2 x c0, kernel), He-normal weights, float64. The state has c0 + c2 channels, "
    "x and the outputs; a block adds a pair of layers to it and writes a part of the outputs, the "
    "scales of the others being 0. Output channels before: zeros, or anything, which the blocks "
    "take off. Scales: all that the blocks train, zeros among them; over two layers: divided by "
    "n + 1. (c0 + c2)² / (c0 c2): the least factor if every entry from channel to channel had to "
    "be hit, 4 where c0 = c2. Largest error: of the whole state over its largest entry, the "
    f"largest of all draws, on {IMAGES} images of {SIDE}x{SIDE}.",
    options=no_overrides,
    formats={"over two layers": ".2f", "(c0 + c2)² / (c0 c2)": ".1f", "largest error": ".0e"},
    claims=claims,
)
