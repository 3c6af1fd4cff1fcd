"""What will be rebuilt, the memory and the time that it takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.duration import solving_seconds
from bnrecon.reconstruction.planned_layer import PlannedLayer, disk_bytes, host_bytes, memory_bytes
from bnrecon.reconstruction.report import OutputDifference

FILE_BYTES = 24  # per feature: scale and shift in float64, statistics in float32


@dataclass(frozen=True)
class Plan:
    """What will be rebuilt: ``layers`` of ``model``, and ``notes`` for the user.

    ``kept`` maps each layer that is not rebuilt to the reason. If images were given, ``trial`` is
    the difference of outputs once layers are replaced by equivalent ones.
    """

    layers: list[PlannedLayer]
    notes: list[str]
    model: nn.Module = field(default_factory=nn.Identity)
    features: FeatureSpec = field(default_factory=FeatureSpec)
    kept: dict[str, str] = field(default_factory=dict)
    trial: OutputDifference | None = None

    @property
    def memory(self) -> int:
        """Bytes for all layers together and for solving the largest."""
        return memory_bytes(self.layers)

    @property
    def host_memory(self) -> int:
        """Bytes of host memory for layers on a GPU; 0 for layers on a CPU."""
        return host_bytes(self.layers)

    @property
    def disk(self) -> int:
        """Bytes of the source network's file: a scale, a shift and two statistics per feature."""
        return FILE_BYTES * sum(layer.groups * layer.width for layer in self.layers)

    @property
    def temporary_disk(self) -> int:
        """Bytes of temporary files while the layers are solved and the source network is used."""
        return disk_bytes(self.layers)

    @cached_property
    def seconds(self) -> float:
        """Estimated seconds to solve, build and check all layers on this machine.

        Operations divided by the rate of a matrix product, measured first (0.1 to 0.5 seconds).
        """
        return sum(solving_seconds(self.layers))

    @property
    def storage(self) -> str:
        """Where features are stored: ``memory``, ``disk``, or ``regenerate`` (nowhere)."""
        return self.layers[0].storage if self.layers else "memory"
