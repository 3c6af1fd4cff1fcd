"""Two source layers for one target layer (Burkholz 2024, Lemma 2.1, Theorems 2.2 and 2.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bnrecon.features.matrix import skip_rows
from bnrecon.features.pair import Features
from bnrecon.features.shapes import LayerShape
from bnrecon.operators.base import Operator
from bnrecon.operators.eliminated import Eliminated
from bnrecon.operators.structured import Selection
from bnrecon.operators.system import Scales, System

SMALL_ROW = 1 / 16  # of the largest norm of a row: smaller rows get a separate second scale


@dataclass(frozen=True)
class TargetLayer:
    """A convolution or linear layer with its normalization folded in.

    Each group of a grouped convolution is a separate system and target.
    """

    name: str  # in the network
    weight: torch.Tensor  # (c2, c0 / groups, *kernel), float64; the kernel of a linear layer is 1x1
    bias: torch.Tensor  # (c2,), float64
    groups: int = 1  # of the convolution

    @property
    def shape(self) -> LayerShape:
        """Outputs, inputs and kernel of one group."""
        outputs, inputs, *kernel = self.weight.shape
        return LayerShape(outputs // self.groups, inputs, tuple(kernel))

    def split(self) -> list[TargetLayer]:
        """Split into one target per group."""
        parts = zip(self.weight.chunk(self.groups), self.bias.chunk(self.groups), strict=True)
        return [TargetLayer(self.name, weight, bias) for weight, bias in parts]

    def rows(self) -> torch.Tensor:
        """The weight in the order of M's rows: (c2, taps c0), taps before inputs."""
        return self.weight.movedim(1, -1).flatten(1)


def linear_system(
    matrix: Operator, weight: torch.Tensor, orthogonal: bool = False, scaled: bool = True
) -> System:
    """The system of a feature matrix and a target.

    For c1 >= n, M γ = vec(W / outer) is solved directly (Theorem 2.3). The second scales ``outer``
    are 1, except for powers of 2 for outputs with far smaller weights than others: errors of M γ,
    rounding included, have one size for all outputs and would drown them. From the minimum width n
    - c2 + 1 to n they are eliminated (Lemma 2.1, Theorem 2.2). With fewer features there is no
    exact solution in general, and M γ = vec(W) is solved in the least-squares sense: a second scale
    fitted to its pivot alone would make the other entries far worse.

    Args:
        matrix: M (n, c1), float64.
        weight: (c2, entries), entries in the order of M's rows; detached from its gradient.
        orthogonal: whether M^T M = I at width n.
        scaled: whether second scales may differ from 1.

    Raises ``ValueError`` for a weight of another shape, such as a kernel (c2, c0, kh, kw).
    """
    (n, width), weight = matrix.shape, weight.detach()
    if weight.ndim != 2 or weight.numel() != n:
        raise ValueError(
            f"weight is of shape {tuple(weight.shape)} for {n} equations; give (c2, entries) in "
            "the order of M's rows, as TargetLayer.rows does"
        )
    if width >= n:
        outer = _scales_of_small_rows(weight) if scaled else None
        rhs = weight if outer is None else weight / outer[:, None]
        return System(matrix, rhs.reshape(-1), matrix, weight, orthogonal, outer)
    if width < n - len(weight) + 1:
        return System(matrix, weight.reshape(-1), matrix, weight, orthogonal)
    eliminated = Eliminated(matrix, weight)
    # Elimination preserves only the orthogonality of id_cond, which has a closed form (Eq. 3).
    stays = orthogonal and isinstance(matrix, Selection)
    return System(eliminated, eliminated.right_hand_side(), matrix, weight, stays)


def _scales_of_small_rows(weight: torch.Tensor) -> torch.Tensor | None:
    """Powers of 2 that scale small rows to the size of the largest; ``None`` without any."""
    norms = weight.norm(dim=1)
    small = (norms > 0) & (norms < SMALL_ROW * norms.max())
    if not bool(small.any()):
        return None
    return torch.where(small, norms / norms.max(), 1).log2().round().exp2()


def composed_weight(matrix: Operator, scales: Scales, features: Features) -> torch.Tensor:
    """Collapse the pair: W' = outer ∘ (B diag(inner) A), (c2, c0, *kernel), in M's precision."""
    shape = features.shape
    table = matrix.matvec(scales.inner.to(matrix.device, matrix.dtype)).reshape(shape.outputs, -1)
    skip = 0 if features.skip == "none" else skip_rows(features).to(table)
    if features.skip == "outer":
        table = table + skip
    table = table * scales.outer.to(table)[:, None]
    if features.skip == "inner":
        table = table + skip
    return table.reshape(shape.outputs, *shape.kernel, shape.inputs).movedim(-1, 1)


def input_moments(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean (…, c0) and biased covariance (…, c0, c0) of inputs (…, pixels, c0).

    Raises ``ValueError`` for fewer than two pixels, as BatchNorm does in training.
    """
    count = inputs.shape[-2]
    if count < 2:
        raise ValueError(f"statistics need two pixels or more, not {count}")
    mean = inputs.mean(-2)
    centred = inputs - mean[..., None, :]
    return mean, centred.mT @ centred / count


def first_variance(first: torch.Tensor, covariance: torch.Tensor) -> torch.Tensor:
    """diag(A Σ A^T), the variance (…, c1) of A x for A (…, c1, c0) of one tap: exact."""
    # Rounding can take it below 0.
    return ((first @ covariance) * first).sum(-1).clamp_min(0)


def relative_error(composed: torch.Tensor, target: torch.Tensor) -> float:
    """‖W' - W‖ / ‖W‖ in float64; the absolute error if the target is zero."""
    target = target.detach().double()
    difference = (composed.detach().double().to(target.device) - target).norm()
    norm = target.norm()
    return float(difference / norm) if norm > 0 else float(difference)


def channel_errors(
    composed: torch.Tensor,
    target: torch.Tensor,
    inputs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """‖(W' - W)_i D‖ / ‖W_i D, b_i‖ of each output i, (c2,) in float64.

    Relative to the largest output's weights if an output's are zero.

    Args:
        composed: W' (c2, c0, *kernel).
        target: W, of the same shape.
        inputs: (c0,), sizes of the inputs, the diagonal of D; by default 1.
        bias: b (c2,); by default 0.

    >>> target = torch.tensor([[4.0, 3.0], [0.0, 1e-6]]).double()
    >>> channel_errors(target + 1e-7, target).log10().round()
    tensor([-8., -1.], dtype=torch.float64)
    """
    target = target.detach().double()
    difference = composed.detach().double().to(target.device) - target
    if inputs is not None:
        sizes = inputs.to(target).reshape(-1, *(1 for _ in target.shape[2:]))
        target, difference = target * sizes, difference * sizes
    norms = target.flatten(1).norm(dim=1)
    if bias is not None:
        norms = torch.hypot(norms, bias.to(norms))
    sizes = torch.where(norms > 0, norms, norms.max())
    return difference.flatten(1).norm(dim=1) / torch.where(sizes > 0, sizes, 1)
