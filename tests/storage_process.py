"""Multiply with a layer's features in a process of limited memory.

    python tests/storage_process.py DISTRIBUTION STORAGE WIDTH BYTES

Prints the norm of a product in float64, after a few products in bf16.
"""

import resource
import sys

import psutil
import torch

from bnrecon.features import LayerShape, draw
from bnrecon.features.matrix import feature_operator
from bnrecon.runtime.precision import BFLOAT16


def main():
    name, storage, width, limit = sys.argv[1:]
    shape = LayerShape(int(width), int(width), (3, 3))
    few = LayerShape(4, 4, (3, 3))
    products(draw(name, few, few.equations, 0, 0, storage=storage))  # loads libraries
    taken = psutil.Process().memory_info().data
    resource.setrlimit(resource.RLIMIT_DATA, (taken + int(limit), resource.RLIM_INFINITY))
    features = draw(name, shape, 3 * shape.equations // 2, 0, 0, storage=storage)
    sys.stdout.write(f"{products(features)}\n")


def products(features):
    exact = feature_operator(features, torch.float64, torch.device("cpu"))
    rounded = exact.to(BFLOAT16)
    x = torch.ones(features.width)
    for _ in range(2):
        x = rounded.rmatvec(rounded.matvec(x))
        x /= x.norm()
    return float(exact.matvec(torch.ones(features.width, dtype=torch.float64)).norm())


if __name__ == "__main__":
    main()
