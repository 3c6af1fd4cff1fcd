"""What residual source layers train for one target layer (Burkholz 2024, Sect. 2.4)."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F

from bnrecon.construction.residual_blocks import residual_blocks
from bnrecon.reporting.wording import span
from bnrecon.reproduction.parts import Decisions, part, sweep, table

SHAPES = ((8, 8, 3), (16, 16, 1), (8, 4, 3))  # c2, c0 and the kernel's side
BLOCKS = (1, 2, 4)  # and one per output, the narrowest
SEEDS = {"smoke": 2, "laptop": 5, "paper": 20}
PAPERS_FACTOR = 4  # "at least by a factor of 4"
NO_ERROR = 1e-9  # relative to the largest output, in float64
SIDE, IMAGES = 10, 4
EMPTY, FILLED = "zeros", "anything"


def measure(outputs: int, inputs: int, side: int, seeds: int) -> pd.DataFrame:
    """Errors and numbers of scales of random layers rebuilt by residual blocks.

    The layers have c2 = ``outputs``, c0 = ``inputs`` and a kernel of this side. One row per draw,
    number of blocks and initial content of the output channels: the largest error of the state (x,
    W x), its largest entry, the scales, and the widest block.
    """
    common: dict[str, Any] = {"target": f"{outputs}x{inputs}, {side}x{side}"}
    common |= {"equations": outputs * inputs * side**2}
    common |= {"counted": (inputs + outputs) ** 2 / (inputs * outputs)}
    rows = []
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        size = (outputs, inputs, side, side)
        target = torch.randn(size, generator=generator, dtype=torch.float64)
        size = (IMAGES, inputs + outputs, SIDE, SIDE)
        state = torch.randn(size, generator=generator, dtype=torch.float64)
        x = state[:, :inputs]
        expected = torch.cat([x, F.conv2d(x, target, padding="same")], 1)
        empty = torch.cat([x, torch.zeros_like(state[:, inputs:])], 1)
        for before, start in ((EMPTY, empty), (FILLED, state)):
            for count in sorted({*BLOCKS, outputs}):
                blocks = residual_blocks(target, count, seed, overwrite=before == FILLED)
                reached = start
                for block in blocks:
                    reached = block(reached)
                row = common | {"seed": seed, "before": before, "blocks": count}
                row["widest"] = max(len(block.inner) for block in blocks)
                row["scales"] = sum(block.scales for block in blocks)
                row["error"] = float((reached - expected).abs().max())
                rows.append(row | {"largest": float(expected.abs().max())})
    return pd.DataFrame(rows)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per target, content before and number of blocks."""
    columns: dict[str, Any] = {
        "target": "target",
        "n": "equations",
        "output channels before": "before",
        "blocks": "blocks",
        "widest layer": "widest",
        "scales": "scales",
        "over two layers": lambda group: times_two_layers(group).iloc[0],
        "(c0 + c2)² / (c0 c2)": "counted",
        "largest error": lambda group: (group["error"] / group["largest"]).max(),
        "draws": len,
    }
    return table(rows, ["target", "before", "blocks"], False, **columns)


def excerpt(table: pd.DataFrame) -> pd.DataFrame:
    """The narrowest sources, with as many blocks as outputs."""
    most = table.groupby("target")["blocks"].transform("max")
    return table[table["blocks"] == most].drop(
        columns=["(c0 + c2)² / (c0 c2)", "scales", "largest error", "draws"]
    )


def times_two_layers(rows: pd.DataFrame) -> pd.Series:
    """Scales over the n + 1 of two layers of minimum width (Theorem 2.2)."""
    return rows["scales"] / (rows["equations"] + 1)


def decide(rows: pd.DataFrame) -> Decisions:
    """The paper's least factor needs a correction if some number of blocks always takes less."""
    factor, error = times_two_layers(rows), rows["error"] / rows["largest"]
    empty, narrowest = rows["before"] == EMPTY, rows.groupby("target")["blocks"].transform("max")
    fewest = factor.groupby([rows["target"], rows["before"]]).min()
    fewer = bool((fewest < PAPERS_FACTOR).all() and (error <= NO_ERROR).all())

    most = rows["blocks"] == narrowest
    groups = {"most": empty & most, "most_filled": ~empty & most}
    numbers: dict[str, Any] = {name: span(factor[row], ".2f") for name, row in groups.items()}
    numbers |= {"error": error.max(), "draws": rows["seed"].nunique()}
    numbers |= {"factor": factor.max(), "width": rows["widest"][factor.idxmax()]}
    numbers["target"] = rows["target"][factor.idxmax()]
    verdict = "needs a correction" if fewer else "undecided"
    return {"Sect. 2.4, residual source layers": verdict}, numbers


OVER = {("outputs", "inputs", "side"): SHAPES}
TASKS = sweep(measure, "{outputs}x{inputs}, {side}x{side}", OVER, {"seeds": SEEDS})
FORMATS = {"over two layers": ".2f", "(c0 + c2)² / (c0 c2)": ".1f", "largest error": ".0e"}
PART = part(__file__, TASKS, summarize, decide=decide, formats=FORMATS, excerpt=excerpt)
