"""The costs of a source network and its target (Burkholz 2024, Sect. 3.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
import torch

from bnrecon.features.register import choose_width
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.folding import find_layers
from bnrecon.reconstruction.plan import Plan
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.reproduction.parts import only, part, read_reported, sweep
from bnrecon.run import estimate
from bnrecon.targets.models import minimum_width_count, parameter_count, vgg

REPORTED = read_reported(__package__)["cost"]
IMAGE = (3, 32, 32)
FEATURES = FeatureSpec("he_normal")
WIDTH = 64
WIDTHS: Mapping[str, Mapping[str, Any]] = {
    "minimum, n - c2 + 1": {"width": "minimum"},
    "maximum, n": {"width": "maximum"},
    "1.5 n": {"oversampling": 1.5},
    "2 n": {"oversampling": 2.0},
}


def count(width: int) -> pd.DataFrame:
    """One row for the target and one per width of the source, counted from the layers' shapes.

    ``operations`` are multiply-adds of one image, ``map_bytes`` the largest intermediate map of
    one image in float32, ``convolutions_trainable`` the trainable parameters of the convolutions.
    """
    target = vgg(IMAGE, 10, width, [2, 3, 4, 4, 4], "relu").eval()
    positions = estimate.pixels(target, IMAGE)
    convolutions = [module for module in target.modules() if isinstance(module, torch.nn.Conv2d)]
    sides = [layer.out for layer in positions.values()][: len(convolutions)]
    largest = max(out * m.out_channels for m, out in zip(convolutions, sides, strict=True))
    counts = {"trainable": parameter_count(target), "frozen": 0}
    counts |= {"operations": estimate.multiply_adds(target, positions), "map_bytes": 4 * largest}
    rows: list[dict[str, Any]] = [{"network": "target", **counts}]
    for name, options in WIDTHS.items():
        layers = []
        for number, layer in enumerate(find_layers(target).layers):
            chosen = choose_width(FEATURES.name, layer.target.shape, **options)
            layers.append(PlannedLayer(layer, chosen, number, FEATURES))
        rows.append({"network": f"source, c1 = {name}", **_count_source(layers, positions)})
    rows[1]["convolutions_trainable"] = minimum_width_count(target)
    return pd.DataFrame(rows)


def _count_source(
    layers: list[PlannedLayer], positions: Mapping[str, estimate.Positions]
) -> dict[str, int]:
    sized = [(layer.folded.target.shape, layer.width) for layer in layers]
    return {
        "trainable": sum(width + 2 * shape.outputs for shape, width in sized),
        "frozen": sum(width * shape.feature_size for shape, width in sized),
        "operations": estimate.source_flops(Plan(layers, []), positions) // 2,
        "map_bytes": max(4 * layer.width * positions[layer.name].inside for layer in layers),
    }


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """The counts in readable units, operations also relative to the target's."""
    target = rows.iloc[0]
    lines = []
    for _, row in rows.iterrows():
        is_target = row["network"] == "target"
        weights = 4 * (row["trainable"] + row["frozen"])
        times = row["operations"] / target["operations"]
        line = {"network": row["network"], "trainable": f"{row['trainable']:,}"}
        line |= {"frozen": "" if is_target else f"{row['frozen']:,}"}
        line |= {"weights, float32": f"{weights / 1e6:,.1f} MB"}
        line |= {"operations": f"{row['operations'] / 1e9:,.2f} G"}
        line |= {"largest map": f"{row['map_bytes'] / 1e6:,.2f} MB"}
        lines.append(line | {"operations / target's": "" if is_target else f"{times:,.0f}"})
    return pd.DataFrame(lines)


TASKS = sweep(count, "all", {}, {"width": WIDTH})
SHOWN = ("target", *(f"source, c1 = {name}" for name in ("minimum, n - c2 + 1", "1.5 n")))
EXCERPT = only("network", *SHOWN, drop=["largest map", "weights, float32"])
PART = part(__file__, TASKS, summarize, numbers=lambda _: REPORTED, excerpt=EXCERPT)
