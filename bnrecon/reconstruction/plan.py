"""What will be rebuilt, the memory and the time that it takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.duration import solving_seconds
from bnrecon.reconstruction.planned_layer import PlannedLayer, disk_bytes, host_bytes, memory_bytes
from bnrecon.reconstruction.report import OutputDifference

FILE_BYTES = 24  # a feature's scale and shift in float64 and statistics in float32


@dataclass(frozen=True)
class Plan:
    """What will be rebuilt: ``layers`` of ``model``, and ``notes`` on what was found.

    ``kept`` has the reason for each layer that is left as it is, ``trial`` how far outputs are off
    once layers are replaced by others that compute the same, where images were given.
    """

    layers: list[PlannedLayer]
    notes: list[str]
    model: nn.Module = field(default_factory=nn.Identity)
    features: FeatureSpec = field(default_factory=FeatureSpec)
    kept: dict[str, str] = field(default_factory=dict)
    trial: OutputDifference | None = None

    @property
    def memory(self) -> int:
        """Bytes that all layers take together, and solving the largest of them."""
        return memory_bytes(self.layers)

    @property
    def host_memory(self) -> int:
        """Bytes of the host's memory that layers on a GPU take; 0 for those on a processor."""
        return host_bytes(self.layers)

    @property
    def disk(self) -> int:
        """Bytes of the source network's file: a scale, a shift and two statistics a feature."""
        return FILE_BYTES * sum(layer.groups * layer.width for layer in self.layers)

    @property
    def temporary_disk(self) -> int:
        """Bytes of temporary files while the layers are solved and the source network is used."""
        return disk_bytes(self.layers)

    @cached_property
    def seconds(self) -> float:
        """Seconds that solving, building and checking all layers take, roughly, on this machine.

        Operations over the rate of a matrix product, which is measured now: 0.1 to 0.5 seconds.
        """
        return sum(solving_seconds(self.layers))

    @property
    def storage(self) -> str:
        """Where all features are: ``memory``, ``disk``, or ``regenerate`` for nowhere."""
        return self.layers[0].storage if self.layers else "memory"
