"""Target networks: their families, training, store and accuracy."""

from typing import TYPE_CHECKING

from bnrecon.runtime.lazy import import_on_use

if TYPE_CHECKING:
    from bnrecon.targets.initialization import FrozenBatchNorm1d as FrozenBatchNorm1d
    from bnrecon.targets.initialization import FrozenBatchNorm2d as FrozenBatchNorm2d
    from bnrecon.targets.initialization import initialize_from_data as initialize_from_data
    from bnrecon.targets.noisy_batchnorm import NoisyBatchNorm1d as NoisyBatchNorm1d
    from bnrecon.targets.noisy_batchnorm import NoisyBatchNorm2d as NoisyBatchNorm2d
    from bnrecon.targets.noisy_batchnorm import NoisyBatchNorm3d as NoisyBatchNorm3d

__getattr__, __dir__, __all__ = import_on_use(__name__)
