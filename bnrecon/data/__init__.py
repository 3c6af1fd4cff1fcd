"""Image data sets: small ones in memory as uint8 tensors, ImageNet streamed from its folders."""

from bnrecon.data.in_memory import InMemoryImages
from bnrecon.data.load import DATASETS, DataSpec, load, refuse_unused_root
from bnrecon.data.streaming import StreamedImages

Images = InMemoryImages | StreamedImages

__all__ = [
    "DATASETS",
    "DataSpec",
    "Images",
    "InMemoryImages",
    "StreamedImages",
    "load",
    "refuse_unused_root",
]
