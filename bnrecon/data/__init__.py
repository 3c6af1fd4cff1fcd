"""Image data sets: small ones in memory as uint8 tensors, ImageNet streamed from its folders.

Modules that need torch are imported on first use, so that ``bnrecon.data.spec`` works without.
"""

from typing import TYPE_CHECKING

from bnrecon.data.spec import DataSpec as DataSpec
from bnrecon.runtime.lazy import import_on_use

if TYPE_CHECKING:
    from bnrecon.data.in_memory import InMemoryImages as InMemoryImages
    from bnrecon.data.loading import DATASETS as DATASETS
    from bnrecon.data.loading import Images as Images
    from bnrecon.data.loading import load as load
    from bnrecon.data.loading import refuse_unused_root as refuse_unused_root
    from bnrecon.data.register import register_data as register_data
    from bnrecon.data.streaming import StreamedImages as StreamedImages

__getattr__, __dir__, __all__ = import_on_use(__name__)
