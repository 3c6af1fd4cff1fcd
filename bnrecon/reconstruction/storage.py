"""Where features are: in memory, in a temporary file, or made wherever they are used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from bnrecon.features.register import distribution
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spec import FeatureSpec
from bnrecon.operators.base import CHUNK_BYTES as PRODUCT_BYTES
from bnrecon.operators.generated import TILE_ROWS
from bnrecon.operators.mapped import disk_folder, disk_room
from bnrecon.operators.rows import TILE
from bnrecon.operators.signs import HELD_BYTES
from bnrecon.reconstruction.source_layer import CHUNK_BYTES
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.hardware import available_memory, format_bytes
from bnrecon.runtime.precision import FLOAT32, precision_schedule
from bnrecon.solvers.iterative import expected_iterations
from bnrecon.solvers.register import lookup

if TYPE_CHECKING:
    from bnrecon.reconstruction.planning import PlannedLayer

__all__ = [
    "advice",
    "count",
    "disk_bytes",
    "fit_together",
    "memory_shortage",
    "rounded_bytes",
    "solving_bytes",
    "storage_seconds",
    "store",
    "together",
]

NEARLY_SQUARE = 1.02  # c1 / n below which bf16 may not suffice, and float32 takes over
DRAWN_SECONDS = 12e-9  # a number, on one core of a Zen 4 processor (scripts/bench_storage.py)
DISK_RATE = 1e9  # bytes a second, of a disk that was not measured
PASSES = 20  # over exact features: corrections and checks of the solve, errors, digests
TILES = 10  # of TILE float64 numbers: two tiles, what they are drawn from, their products
GPU_TILES = 3  # rows of B^T and of A, and their product with the vector
FORWARD = 4 * CHUNK_BYTES  # of a source layer: weights, the intermediate map, both normalized
DRAWING = 3  # times the features, while they pass through a matrix factorization


def store(wanted: list[PlannedLayer], features: FeatureSpec, free: int) -> list[PlannedLayer]:
    """Choose where the features of all layers are.

    ``auto`` takes the first that fits: memory, where all is fastest; regenerated features, where
    that can be; the disk. Where nothing does, it is what takes the least memory.

    Args:
        wanted: the layers, their features in memory.
        features: with their storage.
        free: bytes of memory.

    Raises:
        UserError: they cannot be stored in this way.
        RunError: the disk is too small.
    """
    kind = distribution(features.name)
    if features.storage != "auto":
        kind.check_storage(features.storage)
        chosen = _all(wanted, features.storage)
        if shortage := disk_shortage(chosen):
            raise RunError(f"storage=disk: {shortage}")
        return chosen
    ways = [_all(wanted, way) for way in kind.storages]
    for chosen in ways:  # the disk is looked at only where nothing before it fits
        if together(chosen) <= free and not disk_shortage(chosen):
            return chosen
    return min((chosen for chosen in ways if not disk_shortage(chosen)), key=together)


def _all(layers: list[PlannedLayer], storage: str) -> list[PlannedLayer]:
    return [replace(layer, storage=storage) for layer in layers]


def solving_bytes(layer: PlannedLayer) -> int:
    """Bytes of memory that solving a layer takes whose features are not in memory.

    That is rounded features (bits, of signs) unless they are on disk too, vectors and a few tiles;
    or what the source layer takes to compute. Features that no part of can be made alone are drawn
    in memory before they are written.
    """
    shape, width, kind = layer.shape, layer.width, distribution(layer.features.name)
    numbers = shape.inputs + shape.outputs * shape.taps
    work = lookup("matrix_free").memory(shape.equations, width) + _tile_bytes(layer, numbers)
    if layer.storage == "disk":
        drawn = 0 if "regenerate" in kind.storages else DRAWING * shape.feature_bytes(width)
        return max(work, FORWARD, drawn)
    if layer.features.name == "sign":
        return max(work + min(width * numbers // 8, 2 * HELD_BYTES), FORWARD)
    return max(work + rounded_bytes(shape, width, layer.device), FORWARD)


def _tile_bytes(layer: PlannedLayer, numbers: int) -> int:
    """Bytes of a float64 product's tiles, for ``numbers`` numbers a feature."""
    if layer.device.type == "cpu":
        return 8 * max(TILES * TILE, 4 * TILE_ROWS * numbers)
    return GPU_TILES * min(PRODUCT_BYTES[layer.device.type], 8 * layer.width * numbers)


def rounded_bytes(shape: LayerShape, width: int, device: torch.device) -> int:
    """Bytes of the rounded features that iterations read: 2 a number in bf16, 4 in float32.

    >>> numbers = 6000 * (64 + 64)
    >>> rounded_bytes(LayerShape(64, 64), 6000, torch.device("cpu")) in (2 * numbers, 4 * numbers)
    True
    """
    fastest = precision_schedule(device)[0].factors.itemsize
    enough = width >= NEARLY_SQUARE * shape.equations
    return (fastest if enough else FLOAT32.factors.itemsize) * shape.feature_bytes(width) // 4


def disk_bytes(layers: Sequence[PlannedLayer]) -> int:
    """Bytes of temporary files: the features of all layers, and one layer's rounded ones."""
    stored = [layer for layer in layers if layer.storage == "disk"]
    rounded = (rounded_bytes(layer.shape, layer.width, layer.device) for layer in stored)
    return sum(layer.groups * layer.shape.feature_bytes(layer.width) for layer in stored) + max(
        rounded, default=0
    )


def storage_seconds(layer: PlannedLayer) -> float:
    """Seconds that a layer takes longer because its features are not in memory, roughly.

    Files are read at the speed of memory while they fit into what is free of it.
    """
    shape, width = layer.shape, layer.width
    numbers = layer.groups * shape.feature_bytes(width) // 4
    if layer.storage == "regenerate" and layer.features.name != "sign":
        return PASSES * numbers * DRAWN_SECONDS / torch.get_num_threads()
    if layer.storage != "disk" or disk_bytes([layer]) <= available_memory(torch.device("cpu")):
        return 0.0
    iterations = min(50_000, expected_iterations(width / shape.equations, 1e-10))
    rounded = layer.groups * rounded_bytes(shape, width, layer.device)
    return (4 * numbers * PASSES + 2 * iterations * rounded) / DISK_RATE


def disk_shortage(layers: Sequence[PlannedLayer]) -> str | None:
    """The disk that the features of a plan lack, if they do."""
    need = disk_bytes(layers)
    if need == 0 or need <= (room := disk_room()):
        return None
    folder = disk_folder()
    there = f"{format_bytes(room)} are free" if room else "which is kept in memory"
    return (
        f"features take {format_bytes(need)} in {folder}, {there}; "
        "set TMPDIR to a folder on a larger disk"
    )


def advice(layers: Sequence[PlannedLayer], features: FeatureSpec) -> str:
    """What takes less memory than these features do."""
    kind = distribution(features.name)
    if features.storage == "memory" and "regenerate" in kind.storages:
        return f"storage=auto regenerates features={features.name} instead of storing them"
    if features.storage == "memory" and "disk" in kind.storages:
        return f"storage=auto puts features={features.name} on disk"
    shortage = disk_shortage(_all(list(layers), "disk")) if "disk" in kind.storages else None
    on_disk = "TMPDIR's disk is too small too; " if shortage and features.storage == "auto" else ""
    return f"{on_disk}features=sign need not be stored; features=id_cond needs the least memory"


def memory_shortage(layer: PlannedLayer, free: int) -> str | None:
    """The memory that a layer's own features lack, if they do."""
    need = layer.stored + layer.work
    if need <= free:
        return None
    stored = replace(layer, storage="memory").stored
    return (
        f"its {count(layer.width)} features take {format_bytes(stored)}, "
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
            f"their features, {there}; use a smaller width; "
            f"{advice(planned, planned[0].features)}"
        )
    refused = {}
    while together(planned) > free:
        largest = max(planned, key=lambda layer: (layer.stored + layer.work, layer.number))
        planned.remove(largest)
        refused[largest.name] = f"with the other layers it does not fit: {there}"
    return refused


def together(layers: Sequence[PlannedLayer]) -> int:
    """Bytes that layers take together: what each one stores, and the largest one's work."""
    return sum(layer.stored for layer in layers) + max((layer.work for layer in layers), default=0)


def count(number: int) -> str:
    """A number of features, short where no machine could hold as many."""
    return str(number) if abs(number) < 1e9 else f"{number:.3g}"
