"""Where features are stored: in memory, in a temporary file, or generated at each use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bnrecon.features.register import distribution
from bnrecon.features.spec import FeatureSpec
from bnrecon.operators.mapped import disk_folder, disk_room
from bnrecon.reconstruction.planned_layer import PlannedLayer, disk_bytes, host_bytes, memory_bytes
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.units import format_bytes
from bnrecon.solvers.register import lookup


def store(
    layers: list[PlannedLayer], features: FeatureSpec, free: int, host: int
) -> list[PlannedLayer]:
    """Choose where the features of all layers are stored.

    ``auto`` takes the first that fits: memory, which is fastest; regenerated features, if possible;
    the disk. If none fits, it takes the one that needs the least memory.

    ``free`` are bytes of memory where the layers are solved, ``host`` those of the host. Raises
    ``UserError`` if features do not support this storage, ``RunError`` if the disk is too small.
    """
    kind = distribution(features.name)
    if features.storage != "auto":
        kind.check_storage(features.storage)
        chosen = give_room(_all(layers, features.storage), free)
        if shortage := _disk_shortage(chosen):
            raise RunError(f"storage=disk: {shortage}")
        return chosen
    ways = [give_room(_all(layers, way), free) for way in kind.storages]
    for chosen in ways:  # checks the disk only if nothing before it fits
        if _fit(chosen, free, host) and not _disk_shortage(chosen):
            return chosen
    return min((chosen for chosen in ways if not _disk_shortage(chosen)), key=memory_bytes)


def _all(layers: Sequence[PlannedLayer], storage: str) -> list[PlannedLayer]:
    return [replace(layer, storage=storage) for layer in layers]


def give_room(layers: list[PlannedLayer], free: int) -> list[PlannedLayer]:
    """Set the ``room`` of each layer: the memory that all layers leave to its solver."""
    remaining = free - sum(layer.stored_bytes for layer in layers)
    return [replace(layer, room=remaining - layer.operator_bytes("refined")) for layer in layers]


def _disk_shortage(layers: Sequence[PlannedLayer]) -> str | None:
    need = disk_bytes(layers)
    if need == 0 or need <= (room := disk_room()):
        return None
    there = f"{format_bytes(room)} are free" if room else "which is in memory, not on disk"
    return (
        f"features take {format_bytes(need)} in {disk_folder()}, {there}; "
        "set TMPDIR to a folder on a larger disk"
    )


def advise(layers: Sequence[PlannedLayer], features: FeatureSpec) -> str:
    """Say what takes less memory than these features."""
    ways = distribution(features.name).storages
    if features.storage == "memory" and "regenerate" in ways:
        return f"storage=auto regenerates features={features.name} instead of storing them"
    if features.storage == "memory" and "disk" in ways:
        return f"storage=auto puts features={features.name} on disk"
    full = features.storage == "auto" and "disk" in ways and _disk_shortage(_all(layers, "disk"))
    on_disk = "TMPDIR's disk is too small too; " if full else ""
    return f"{on_disk}features=sign need not be stored; features=id_cond needs the least memory"


def solver_shortage(layer: PlannedLayer, stored: int, free: int) -> str | None:
    """Say what memory a layer's solver lacks, if a matrix-free one would have enough.

    ``stored`` are the bytes of source layers, ``free`` those available.
    """
    need = layer.solver_memory
    beside = stored + layer.working_bytes - need
    least = lookup("matrix_free").memory(layer.rows, layer.width)
    if not beside + least <= free < beside + need:
        return None
    return (
        f"solver {layer.choice.solver} needs {format_bytes(need)} on {layer.device.type} beside "
        f"{format_bytes(beside)} for features, {format_bytes(free)} are free"
    )


def memory_shortage(layer: PlannedLayer, free: int) -> str | None:
    """Say what memory a layer alone lacks, if any."""
    need = memory_bytes([layer])
    if need <= free:
        return None
    stored = replace(layer, storage="memory").stored_bytes
    return (
        f"its {show_count(layer.width)} features take {format_bytes(stored)}, "
        f"{format_bytes(need)} while solving, and {format_bytes(free)} are free"
    )


def fit_together(
    planned: list[PlannedLayer], free: int, host: int, unsupported: str
) -> dict[str, str]:
    """Remove the largest layers until the plan fits; return them with the reason."""
    if _fit(planned, free, host):
        return {}
    device, need, there = planned[0].device.type, memory_bytes(planned), free
    if need <= free:
        device, need, there = "the GPU's host", host_bytes(planned), host
    limit = f"{format_bytes(there)} are free on {device}"
    if unsupported == "raise":
        raise UserError(
            f"the network's {len(planned)} layers need {format_bytes(need)} for their features "
            f"and while the largest is solved, {limit}; use a smaller width; "
            f"{advise(planned, planned[0].features)}"
        )
    refused = {}
    while not _fit(planned, free, host):
        largest = max(planned, key=lambda layer: (memory_bytes([layer]), layer.number))
        planned.remove(largest)
        refused[largest.name] = f"with the other layers it does not fit: {limit}"
    return refused


def _fit(layers: Sequence[PlannedLayer], free: int, host: int) -> bool:
    """Whether layers fit into memory together, and into that of a GPU's host."""
    return memory_bytes(layers) <= free and host_bytes(layers) <= host


def show_count(number: int) -> str:
    """Format a number of features, shortened if no machine could hold as many."""
    return str(number) if abs(number) < 1e9 else f"{number:.3g}"
