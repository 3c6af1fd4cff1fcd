"""Feature matrices and targets of the second paper's distributions, small enough to be formed."""

from __future__ import annotations

import torch

from bnrecon.features.drawing import draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.portable_random import Stream
from bnrecon.features.shapes import LayerShape

__all__ = ["FEATURES", "feature_matrix", "target_weight"]


CPU = torch.device("cpu")


# As the paper calls them, and as they are called here.
FEATURES = {
    "He normal": "he_normal",
    "orthogonal": "orthogonal",
    "ER normal": "sparse_he_normal",
    "ER sign": "er_sign",
    "ID cond": "id_cond",
    "Ortho cond": "ortho_cond",
}


def feature_matrix(name: str, shape: LayerShape, width: int, seed: int) -> torch.Tensor:
    """M (n, c1) in float64. Of id_cond and ortho_cond, which have n features, ``width`` < n random ones are kept.

    >>> feature_matrix("id_cond", LayerShape(3, 4), 10, seed=0).shape
    torch.Size([12, 10])
    """
    n = shape.equations
    if name in ("id_cond", "ortho_cond"):
        matrix = feature_operator(draw(name, shape, n, seed, 0), torch.float64, CPU).dense()
        kept = (
            torch.randperm(n, generator=torch.Generator().manual_seed(seed))[: min(width, n)]
            .sort()
            .values
        )
        return matrix[:, kept]
    return feature_operator(draw(name, shape, width, seed, 0), torch.float64, CPU).dense()


def target_weight(
    name: str, outputs: int, inputs: int, seed: int, hidden: int | None = None
) -> torch.Tensor:
    """A target (c2, c0) of the distribution of the features' weights: W, or W2 W1 through ``hidden`` channels, where given (Fig. 4).

    ER: masked with probability 1/2. ID cond and Ortho cond: W2 W1 is ``hidden`` (at most n) of their features, at random, added up; as
    one matrix ID cond's weights, single ones, make no target, its W is normal, and Ortho cond's is orthogonal.
    """
    if hidden is not None and name in ("id_cond", "ortho_cond"):
        shape = LayerShape(outputs, inputs)
        first, second = draw(name, shape, shape.equations, 1_000_000 + seed, 0).weights()
        kept = Stream(seed, 1_001).order(shape.equations, "hidden")[:hidden]
        return second[:, kept].reshape(outputs, -1).double() @ first[kept].double()
    if hidden is not None:
        return (
            target_weight(name, outputs, hidden, 2 * seed)
            @ target_weight(name, hidden, inputs, 2 * seed + 1)
            / hidden**0.5
        )
    stream = Stream(seed, 1_000)
    normal = stream.normal((outputs, inputs), "target").double()
    if name in ("orthogonal", "ortho_cond"):
        q, r = torch.linalg.qr(normal if outputs >= inputs else normal.T)
        q = q * r.diagonal().sign()
        return q if outputs >= inputs else q.T
    if name == "er_sign":
        normal = normal.sign()
    if name in ("sparse_he_normal", "er_sign"):
        normal = normal * stream.mask((outputs, inputs), "target mask")
    return normal
