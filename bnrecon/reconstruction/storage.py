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
from bnrecon.operators.integers import EXPANDED_BYTES
from bnrecon.operators.mapped import disk_folder, disk_room
from bnrecon.operators.rows import TILE
from bnrecon.operators.signs import HELD_BYTES
from bnrecon.reconstruction.kernels import Layer
from bnrecon.reconstruction.source_layer import CHUNK_BYTES
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.hardware import available_memory
from bnrecon.runtime.units import format_bytes
from bnrecon.solvers.iterative import expected_iterations, rounded_itemsize
from bnrecon.solvers.krylov import MOST_ITERATIONS
from bnrecon.solvers.register import lookup

if TYPE_CHECKING:
    from bnrecon.reconstruction.plan import PlannedLayer

__all__ = [
    "advice",
    "count",
    "disk_bytes",
    "fit_together",
    "give_room",
    "held_bytes",
    "host_bytes",
    "memory_shortage",
    "solver_shortage",
    "solving_bytes",
    "storage_seconds",
    "store",
    "together",
]

VECTOR_BYTES = 48  # a feature's scale, shift and statistics, in float64 and as BatchNorm's
DRAWN_SECONDS = 12e-9  # a normal number, of which drawing takes 9.6 (docs/benchmarks.md)
DISK_RATE = 1e9  # bytes a second, of a disk that was not measured
PASSES = 20  # over exact features: corrections and checks of the solve, errors, digests
TILES = 10  # of TILE float64 numbers are enough for tiles, their random numbers and products
GPU_TILES = 3  # rows of B^T and of A, and their product with the vector
FORWARD = 4 * CHUNK_BYTES  # of a source layer: weights, the intermediate map, both normalized
DRAWING = 3  # times the features, while they pass through a matrix factorization


def store(
    wanted: list[PlannedLayer], features: FeatureSpec, free: int, host: int
) -> list[PlannedLayer]:
    """Choose where the features of all layers are.

    ``auto`` takes the first that fits: memory, where all is fastest; regenerated features, where
    that can be; the disk. Where nothing does, it is what takes the least memory.

    Args:
        wanted: the layers, their features in memory.
        features: with their storage.
        free: bytes of memory where the layers are solved.
        host: bytes of the host's memory.

    Raises:
        UserError: they cannot be stored in this way.
        RunError: the disk is too small.
    """
    kind = distribution(features.name)
    if features.storage != "auto":
        kind.check_storage(features.storage)
        chosen = give_room(_all(wanted, features.storage), free)
        if shortage := disk_shortage(chosen):
            raise RunError(f"storage=disk: {shortage}")
        return chosen
    ways = [give_room(_all(wanted, way), free) for way in kind.storages]
    for chosen in ways:  # the disk is looked at only where nothing before it fits
        if _fit(chosen, free, host) and not disk_shortage(chosen):
            return chosen
    return min((chosen for chosen in ways if not disk_shortage(chosen)), key=together)


def _all(layers: list[PlannedLayer], storage: str) -> list[PlannedLayer]:
    return [replace(layer, storage=storage) for layer in layers]


def give_room(layers: list[PlannedLayer], free: int) -> list[PlannedLayer]:
    """The layers with the memory that all of them leave to each one's solver."""
    left = free - sum(layer.stored for layer in layers)
    return [replace(layer, room=left - _operator_bytes(layer, "refined")) for layer in layers]


def held_bytes(name: str, shape: LayerShape, width: int, module: Layer) -> int:
    """Bytes of memory that the frozen weights of a source layer take where it is.

    Beside the layer's own weights a processor's memory has those that were drawn, in float32: the
    same tensors in a float32 network, unless those of several groups were joined. Signs and
    patterns are formed for the layer alone.

    Args:
        name: of the distribution.
        shape: of the target layer, or of one group of it.
        width: the number of features, of each group.
        module: the target layer.

    >>> shape = LayerShape(8, 8)
    >>> [held_bytes("he_normal", shape, 96, torch.nn.Linear(8, 8, dtype=kind))
    ...  // (96 * 16) for kind in (torch.float32, torch.float64)]
    [4, 12]
    """
    itemsize, groups = module.weight.itemsize, getattr(module, "groups", 1)
    shared = itemsize == 4 and groups == 1
    beside = 4 if _kept(name) and not shared and module.weight.device.type == "cpu" else 0
    return groups * shape.feature_bytes(width) // 4 * (itemsize + beside)


def _kept(name: str) -> bool:
    """Whether features of a distribution hold weights that were drawn."""
    return name != "sign" and "disk" in distribution(name).storages


def host_bytes(layers: Sequence[PlannedLayer]) -> int:
    """Bytes of the host's memory, for layers on a GPU: drawn weights, and one layer on its way."""
    sizes = [
        layer.groups * layer.shape.feature_bytes(layer.width)
        for layer in layers
        if layer.device.type != "cpu" and layer.storage == "memory" and not layer.implicit
    ]
    kept = sum(sizes) if all(_kept(layer.features.name) for layer in layers) else 0
    return kept + 2 * max(sizes, default=0)


def solving_bytes(layer: PlannedLayer) -> int:
    """Bytes of memory that solving a layer takes: what its solver multiplies by, and its own.

    Where features are not in memory, it may be what the source layer takes to compute; those that
    no part of can be made alone are drawn in memory before they are written.
    """
    work = _operator_bytes(layer, layer.choice.solver) + layer.solver_memory
    if layer.storage == "memory":
        return work
    if layer.storage == "disk" and "regenerate" not in distribution(layer.features.name).storages:
        work = max(work, DRAWING * layer.shape.feature_bytes(layer.width))
    return max(work, FORWARD)


def _operator_bytes(layer: PlannedLayer, solver: str) -> int:
    """Bytes of what a solver multiplies by, for one group, and of the tiles that it does so in.

    Of features in memory these are a transposed and a rounded copy. Else they are rounded features
    (bits, of signs), unless they are on disk too.
    """
    shape, width = layer.shape, layer.width
    if layer.storage == "memory":
        return 2 * ((0 if layer.implicit else shape.feature_bytes(width)) + VECTOR_BYTES * width)
    numbers = shape.inputs + shape.outputs * shape.taps
    tiles = _tile_bytes(layer, numbers)
    if layer.storage == "disk":
        return tiles
    if layer.features.name == "sign":
        bits = width * numbers // 8
        if layer.device.type != "cpu":  # the signs themselves only where there is room
            return tiles + bits
        expanded = 2 * width * numbers if width * numbers <= EXPANDED_BYTES else 0
        return tiles + min(bits, 2 * HELD_BYTES) + expanded
    return tiles + _rounded_bytes(layer, solver)


def _tile_bytes(layer: PlannedLayer, numbers: int) -> int:
    """Bytes of a float64 product's tiles, for ``numbers`` numbers a feature."""
    if layer.device.type == "cpu":
        return 8 * max(TILES * TILE, 4 * TILE_ROWS * numbers)
    return GPU_TILES * min(PRODUCT_BYTES[layer.device.type], 8 * layer.width * numbers)


def _rounded_bytes(layer: PlannedLayer, solver: str) -> int:
    """Bytes of one group's rounded features that iterations read: 2 a number in bf16, else 4."""
    itemsize = rounded_itemsize(solver, layer.rows, layer.width, layer.device)
    return itemsize * layer.shape.feature_bytes(layer.width) // 4


def disk_bytes(layers: Sequence[PlannedLayer]) -> int:
    """Bytes of temporary files: the features of all layers, and one layer's rounded ones."""
    stored = [layer for layer in layers if layer.storage == "disk"]
    rounded = (_rounded_bytes(layer, layer.choice.solver) for layer in stored)
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
    iterations = min(MOST_ITERATIONS, expected_iterations(width / shape.equations, 1e-10))
    rounded = layer.groups * _rounded_bytes(layer, layer.choice.solver)
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


def solver_shortage(layer: PlannedLayer, stored: int, free: int) -> str | None:
    """The memory that a layer's solver lacks, where a matrix-free one would have enough.

    Args:
        layer: the layer.
        stored: bytes that source layers take beside it.
        free: bytes of memory.
    """
    name, need = layer.choice.solver, layer.solver_memory
    beside = stored + layer.work - need
    least = lookup("matrix_free").memory(layer.rows, layer.width)
    if not beside + least <= free < beside + need:
        return None
    return (
        f"solver {name} needs {format_bytes(need)} on {layer.device.type} beside "
        f"{format_bytes(beside)} for features, {format_bytes(free)} are free"
    )


def memory_shortage(layer: PlannedLayer, free: int) -> str | None:
    """The memory that a layer lacks by itself, if it does."""
    need = layer.stored + layer.work
    if need <= free:
        return None
    stored = replace(layer, storage="memory").stored
    return (
        f"its {count(layer.width)} features take {format_bytes(stored)}, "
        f"{format_bytes(need)} while solving, and {format_bytes(free)} are free"
    )


def fit_together(
    planned: list[PlannedLayer], free: int, host: int, unsupported: str
) -> dict[str, str]:
    """Take the largest layers out of the plan until the others fit; return them with the reason."""
    if _fit(planned, free, host):
        return {}
    device, need, there = planned[0].device.type, together(planned), free
    if need <= free:
        device, need, there = "the GPU's host", host_bytes(planned), host
    limit = f"{format_bytes(there)} are free on {device}"
    if unsupported == "raise":
        raise UserError(
            f"the network's {len(planned)} layers need {format_bytes(need)} for their features "
            f"and while the largest is solved, {limit}; use a smaller width; "
            f"{advice(planned, planned[0].features)}"
        )
    refused = {}
    while not _fit(planned, free, host):
        largest = max(planned, key=lambda layer: (layer.stored + layer.work, layer.number))
        planned.remove(largest)
        refused[largest.name] = f"with the other layers it does not fit: {limit}"
    return refused


def _fit(layers: Sequence[PlannedLayer], free: int, host: int) -> bool:
    """Whether layers fit into memory together, and into that of a GPU's host."""
    return together(layers) <= free and host_bytes(layers) <= host


def together(layers: Sequence[PlannedLayer]) -> int:
    """Bytes that layers take together: what each one stores, and the largest one's work."""
    return sum(layer.stored for layer in layers) + max((layer.work for layer in layers), default=0)


def count(number: int) -> str:
    """A number of features, short where no machine could hold as many."""
    return str(number) if abs(number) < 1e9 else f"{number:.3g}"
