"""Image data sets: small ones in memory as uint8 tensors, ImageNet streamed from its folders.

Modules that need torch are imported on first use, so that ``bnrecon.data.spec`` works without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bnrecon.data.spec import DataSpec
from bnrecon.runtime.lazy import import_on_use

if TYPE_CHECKING:
    from bnrecon.data.in_memory import InMemoryImages
    from bnrecon.data.loading import DATASETS, Images, load, refuse_unused_root
    from bnrecon.data.register import register_data
    from bnrecon.data.streaming import StreamedImages

__all__ = [
    "DATASETS",
    "DataSpec",
    "Images",
    "InMemoryImages",
    "StreamedImages",
    "load",
    "refuse_unused_root",
    "register_data",
]

__getattr__ = import_on_use(__name__)
