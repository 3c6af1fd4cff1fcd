"""What a source network costs beside its target: parameters, operations, memory (Burkholz 2024, Sect. 3.2)."""

from __future__ import annotations

import pandas as pd
import torch

from bnrecon.features.register import choose_width
from bnrecon.reconstruction.folding import find_layers
from bnrecon.reconstruction.planning import Plan, PlannedLayer
from bnrecon.run import estimate
from bnrecon.targets.models import minimum_width_count, parameter_count, vgg

__all__ = ["table"]


IMAGE = (3, 32, 32)


WIDTHS = {
    "minimum, n - c2 + 1": {"width": "minimum"},
    "maximum, n": {"width": "maximum"},
    "1.5 n": {"oversampling": 1.5},
    "2 n": {"oversampling": 2.0},
}


def table(width: int = 64) -> pd.DataFrame:
    """One line for the target and one for each width of the source; counted from the layers' shapes, nothing is drawn."""
    target = vgg(IMAGE, 10, width, [2, 3, 4, 4, 4], "relu").eval()
    places = estimate.pixels(target, IMAGE)
    operations = estimate.multiply_adds(target, places)
    convolutions = [module for module in target.modules() if isinstance(module, torch.nn.Conv2d)]
    largest = max(
        out * module.out_channels
        for module, (_, out) in zip(convolutions, places.values(), strict=False)
    )
    lines = [
        _line(
            "target",
            parameter_count(target),
            None,
            parameter_count(target),
            operations,
            4 * largest,
        )
    ]
    for name, options in WIDTHS.items():
        layers = [
            PlannedLayer(
                found, choose_width("he_normal", found.target.shape, **options), number, "he_normal"
            )
            for number, found in enumerate(find_layers(target).layers)
        ]
        lines.append(_source_line(name, Plan(layers, []), places, operations))
    lines[1]["of these, in the paper's count"] = f"{minimum_width_count(target):,}"
    return pd.DataFrame(lines).fillna("")


def _source_line(
    name: str, plan: Plan, places: dict[str, tuple[int, int]], target_operations: int
) -> dict[str, str]:
    trainable = sum(layer.width + 2 * layer.found.target.shape.outputs for layer in plan.layers)
    frozen = sum(layer.found.target.shape.feature_bytes(layer.width) // 4 for layer in plan.layers)
    operations = estimate.source_flops(plan, places) // 2
    largest = max(4 * layer.width * places[layer.found.name][0] for layer in plan.layers)
    line = _line(f"source, c1 = {name}", trainable, frozen, trainable + frozen, operations, largest)
    return line | {"times the target's": f"{operations / target_operations:,.0f}"}


def _line(
    name: str, trainable: int, frozen: int | None, total: int, operations: int, largest_map: int
) -> dict[str, str]:
    return {
        "network": name,
        "trainable": f"{trainable:,}",
        "frozen": "" if frozen is None else f"{frozen:,}",
        "weights, float32": f"{4 * total / 1e6:,.1f} MB",
        "operations": f"{operations / 1e9:,.2f} G",
        "map": f"{largest_map / 1e6:,.2f} MB",
    }
