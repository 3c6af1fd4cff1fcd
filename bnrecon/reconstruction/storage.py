"""Where features are, in memory or regenerated wherever they are used, and what fits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from bnrecon.features.register import distribution
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import FeatureSpec
from bnrecon.operators.generated import TILE
from bnrecon.operators.signs import HELD_BYTES
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.hardware import format_bytes
from bnrecon.solvers.register import lookup

if TYPE_CHECKING:
    from bnrecon.reconstruction.planning import PlannedLayer

__all__ = [
    "count",
    "fit_together",
    "less_memory",
    "memory_shortage",
    "regenerated_work",
    "regenerates",
    "together",
]


def regenerates(features: FeatureSpec, needed: int, free: int) -> bool:
    """Whether features are regenerated: on request, and where they would not fit into memory.

    Args:
        features: with their storage.
        needed: bytes that all layers take, solving included, with features in memory.
        free: bytes that there are.

    Raises:
        UserError: they are to be regenerated, and cannot be.

    >>> regenerates(FeatureSpec("sign"), needed=2, free=1)
    True
    >>> regenerates(FeatureSpec("sign", storage="memory"), needed=2, free=1)
    False
    """
    kind = distribution(features.name)
    if features.storage == "regenerate":
        kind.check_regenerable()
        return True
    return features.storage == "auto" and kind.regenerable and needed > free


def regenerated_work(shape: LayerShape, width: int) -> int:
    """Bytes that solving a layer of regenerated features takes: bits, vectors and a few tiles."""
    bits = width * (shape.inputs + shape.outputs * shape.taps) // 8
    vectors = lookup("matrix_free").memory(shape.equations, width)
    return min(bits, 2 * HELD_BYTES) + vectors + 4 * 8 * TILE


def less_memory(features: FeatureSpec) -> str:
    """What takes less memory than these features do.

    >>> less_memory(FeatureSpec("sign", storage="memory"))
    'storage=auto regenerates features=sign instead of storing them'
    """
    if distribution(features.name).regenerable:
        return f"storage=auto regenerates features={features.name} instead of storing them"
    return "features=sign need not be stored; features=id_cond needs the least memory"


def memory_shortage(layer: PlannedLayer, free: int) -> str | None:
    """The memory that a layer's own features lack, if they do."""
    need = layer.stored + layer.work
    if need <= free:
        return None
    return (
        f"its {count(layer.width)} features take {format_bytes(layer.stored)}, "
        f"{format_bytes(need)} while solving, and {format_bytes(free)} are free"
    )


def fit_together(
    planned: list[PlannedLayer], free: int, unsupported: str, device: torch.device
) -> dict[str, str]:
    """Take the largest layers out of the plan until the others fit; return them with the reason."""
    there = f"{format_bytes(free)} are free on {device.type}"
    if together(planned) > free and unsupported == "raise":
        raise UserError(
            f"the network's {len(planned)} layers need {format_bytes(together(planned))} for "
            f"their features, {there}; use a smaller width; {less_memory(planned[0].features)}"
        )
    refused = {}
    while together(planned) > free:
        largest = max(planned, key=lambda layer: (layer.stored, layer.number))
        planned.remove(largest)
        refused[largest.name] = f"with the other layers it does not fit: {there}"
    return refused


def together(layers: Sequence[PlannedLayer]) -> int:
    """Bytes that layers take together: what each one stores, and the largest one's work."""
    return sum(layer.stored for layer in layers) + max((layer.work for layer in layers), default=0)


def count(number: int) -> str:
    """A number of features, short where no machine could hold as many."""
    return str(number) if abs(number) < 1e9 else f"{number:.3g}"
