"""The feature matrix M of a frozen pair as an operator."""

from __future__ import annotations

import torch

from bnrecon.features.pair import Features, shared_feature_rows
from bnrecon.operators.base import Operator
from bnrecon.operators.distributed import Distributed, shares
from bnrecon.operators.generated import Generated
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.operators.structured import Kronecker, Selection
from bnrecon.runtime.precision import Precision
from bnrecon.runtime.torch_modes import CPU


def feature_operator(features: Features, dtype: torch.dtype, device: torch.device) -> Operator:
    """M of a pair of features; features that follow a pattern are not formed."""
    if features.pattern == "identity":
        return Selection(torch.arange(features.width, device=device), features.width, dtype)
    if features.pattern == "shared":
        private = shared_feature_rows(features.shape)
        index = private.cumsum(0) - 1
        return Selection(torch.where(private, index, 0).to(device), features.width, dtype)
    if features.pattern == "kronecker":
        return Kronecker(*(factor.to(device, dtype) for factor in features.factors))
    if not features.in_memory:
        first, transposed = features.by_rows()
        return Generated(transposed, first, device, Precision.of(dtype))
    if features.pattern == "sign":
        whole = slice(None)
        tables = [rows.values(whole, torch.float32, CPU).to(device) for rows in features.by_rows()]
        return KhatriRao(tables[1], tables[0], Precision.of(dtype))
    return KhatriRao.of(*features.weights(), dtype, device)


def distributed_operator(features: Features, device: torch.device) -> Distributed:
    """M in float64, its features divided among the processes of torch.distributed."""
    _, share = shares(features.width)
    if not features.in_memory:
        rows, transposed = (each.section(share) for each in features.by_rows())
        return Distributed(Generated(transposed, rows, device), features.width)
    first, second = features.weights()
    part = KhatriRao.of(first[share].clone(), second[:, share], torch.float64, device)
    return Distributed(part, features.width)


def skip_rows(features: Features) -> torch.Tensor:
    """The kernel of the skip connection, (c2, kh kw c0), in the order of M's rows.

    S is at the kernel's centre; all other entries are zero.
    """
    shape = features.shape
    table = torch.zeros(shape.outputs, *shape.kernel, shape.inputs, dtype=torch.float64)
    if features.skip_weight is not None:
        middle = table
        for side in shape.kernel:
            middle = middle.select(1, side // 2)
        middle.copy_(features.skip_weight)
    return table.flatten(1)
