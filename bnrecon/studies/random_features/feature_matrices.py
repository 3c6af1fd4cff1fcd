"""Feature matrices and targets of the paper's six distributions, small enough to be formed."""

from __future__ import annotations

import math

import torch

from bnrecon.features.distributions import orthonormal_columns
from bnrecon.features.drawing import draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.portable_random import Stream
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import PALETTE

CPU = torch.device("cpu")

# The paper's names of the distributions, and their names here.
FEATURES = {
    "He normal": "he_normal",
    "orthogonal": "orthogonal",
    "ER normal": "sparse_he_normal",
    "ER sign": "er_sign",
    "ID cond": "id_cond",
    "Ortho cond": "ortho_cond",
}
ORTHOGONAL = ("id_cond", "ortho_cond")  # M is orthogonal and has exactly n columns
ANY_WIDTH = tuple(label for label, name in FEATURES.items() if name not in ORTHOGONAL)
COLOURS = dict(zip(FEATURES, PALETTE, strict=False))  # the same in every figure


def feature_matrix(name: str, shape: LayerShape, width: int, seed: int) -> torch.Tensor:
    """Form M in float64.

    Args:
        name: a distribution, such as ``he_normal``.
        shape: the target layer's shape, with n = c2 c0 equations.
        width: number of features c1. id_cond and ortho_cond have n features, of which this many
            random ones are kept.
        seed: the seed of the features and of the kept ones.

    Returns:
        M (n, c1).

    >>> feature_matrix("id_cond", LayerShape(3, 4), 10, seed=0).shape
    torch.Size([12, 10])
    """
    n = shape.equations
    if name not in ORTHOGONAL:
        return feature_operator(draw(name, shape, width, seed, 0), torch.float64, CPU).dense()
    matrix = feature_operator(draw(name, shape, n, seed, 0), torch.float64, CPU).dense()
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    return matrix[:, order[: min(width, n)].sort().values]


def normalized_matrix(label: str, shape: LayerShape, width: int, seed: int) -> torch.Tensor:
    """M of one of ``FEATURES``, scaled to entries of variance 1 / n, as Theorem 2.2 assumes."""
    matrix = feature_matrix(FEATURES[label], shape, width, seed)
    return matrix * (math.sqrt(matrix.shape[1]) / float(matrix.norm()))


def target_weight(
    name: str, outputs: int, inputs: int, seed: int, hidden: int | None = None
) -> torch.Tensor:
    """Draw a target (c2, c0) of the distribution of the features' weights.

    Args:
        name: a distribution; ER targets keep each weight with probability 1/2. For id_cond and
            ortho_cond, a single matrix is normal or orthogonal.
        outputs: c2.
        inputs: c0.
        seed: the target's seed.
        hidden: if set, the target is a product W2 W1 through this many hidden channels (Fig. 4).
            For id_cond and ortho_cond, it is the sum of as many random features of their n, or of
            all n.

    Returns:
        The weight (c2, c0) in float64.
    """
    if hidden is None:
        return _single_weight(name, outputs, inputs, Stream(seed, 1_000))
    if name in ORTHOGONAL:
        shape = LayerShape(outputs, inputs)
        first, second = draw(name, shape, shape.equations, 1_000_000 + seed, 0).weights()
        chosen = Stream(seed, 1_001).order(shape.equations, "hidden")[:hidden]
        return second[:, chosen].reshape(outputs, -1).double() @ first[chosen].double()
    second = target_weight(name, outputs, hidden, 2 * seed)
    first = target_weight(name, hidden, inputs, 2 * seed + 1)
    return second @ first / hidden**0.5


def _single_weight(name: str, outputs: int, inputs: int, stream: Stream) -> torch.Tensor:
    weight = stream.normal((outputs, inputs), "target").double()
    if name in ("orthogonal", "ortho_cond"):
        return orthonormal_columns(weight)
    if name == "er_sign":
        weight = weight.sign()
    if name in ("sparse_he_normal", "er_sign"):
        weight = weight * stream.mask((outputs, inputs), "target mask")
    return weight
