"""Target networks: their families, training, store and accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bnrecon.runtime.lazy import import_on_use

if TYPE_CHECKING:
    from bnrecon.targets.initialization import (
        FrozenBatchNorm1d,
        FrozenBatchNorm2d,
        initialize_from_data,
    )
    from bnrecon.targets.noisy_batchnorm import NoisyBatchNorm1d, NoisyBatchNorm2d, NoisyBatchNorm3d

__all__ = [
    "FrozenBatchNorm1d",
    "FrozenBatchNorm2d",
    "NoisyBatchNorm1d",
    "NoisyBatchNorm2d",
    "NoisyBatchNorm3d",
    "initialize_from_data",
]

__getattr__ = import_on_use(__name__)
