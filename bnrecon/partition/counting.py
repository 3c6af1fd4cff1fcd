"""How many folded hyperplanes pass through a ball: exactly in a slice, and in high dimension.

"Batch Normalization Explained", Figures 3 and 4, where the ball is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from scipy.special import betainc
from torch import fx, nn

from bnrecon.partition.network import PiecewiseAffine
from bnrecon.partition.result import Folds
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.options import checked
from bnrecon.runtime.torch_modes import outside_torch_modes

Step = Callable[[fx.Node, torch.Tensor], torch.Tensor]
PROBES = 256  # directions, or samples of a ball, per run of the network
TILE = 64  # points compared with all segments near them


def count_in_slice(
    folds: Folds, points: np.ndarray, radius: float, *, facets: bool = False
) -> np.ndarray:
    """How many folded hyperplanes pass within ``radius`` of points of the slice: counts (n,).

    Exact in the slice, by the distances to the segments; a fold is not seen outside of the window.

    Args:
        folds: such as ``partition(...).folds.of(layer)``.
        points: (n, 2), coordinates in the slice.
        radius: of the ball.
        facets: count the segments, one per region of the earlier layers, instead of the units.

    Returns:
        For each point the number of units with a segment in the ball, or of segments.
    """
    counts = np.zeros(len(points), dtype=int)
    identity = folds.layer * (folds.unit.max(initial=0) + 1) + folds.unit
    low, high = folds.ends.min(1) - radius, folds.ends.max(1) + radius
    stack = [(np.arange(len(points)), np.arange(len(folds)))]
    while stack:
        some, near = stack.pop()
        if not len(some):
            continue
        corner, opposite = points[some].min(0), points[some].max(0)
        near = near[((low[near] <= opposite) & (high[near] >= corner)).all(1)]
        if len(some) > TILE:
            axis = (opposite - corner).argmax()
            order = some[np.argsort(points[some, axis])]
            stack += [(half, near) for half in np.array_split(order, 2)]
            continue
        reached = _distances(points[some], folds.ends[near]) <= radius
        if facets:
            counts[some] = reached.sum(1)
            continue
        point, segment = np.nonzero(reached)
        pairs = np.unique(np.stack([point, identity[near[segment]]]), axis=1)
        counts[some] = np.bincount(pairs[0], minlength=len(some))
    return counts


def _distances(points: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """From n points to S segments (S, 2, 2): (n, S)."""
    along = ends[:, 1] - ends[:, 0]
    offsets = points[:, None] - ends[:, 0]
    square = (along**2).sum(1)
    share = (offsets * along).sum(2) / np.where(square > 0, square, 1.0)
    rest = offsets - np.clip(share, 0, 1)[..., None] * along
    return np.hypot(rest[..., 0], rest[..., 1])


@outside_torch_modes
def fold_distances(
    network: nn.Module, points: torch.Tensor, *, probes: int | None = None, seed: int = 0
) -> list[torch.Tensor]:
    """The distance of inputs to every unit's zero set, by the affine map of the input's region.

    |z| / ||grad z|| for each unit, with the gradient by the input (local linearization). This is
    exact unless a unit of an earlier layer folds the zero set nearer than that.

    Args:
        network: piecewise affine; see ``PiecewiseAffine``.
        points: (n, *input shape).
        probes: ``None`` for exact gradients, with all input directions. Otherwise that many
            Gaussian directions d, and ||grad z||² is the mean of (grad z · d)²: a relative error of
            about sqrt(1 / (2 probes)) in the distance.
        seed: of the probes.

    Returns:
        For each activation layer the distances (n, units), infinite where the gradient is zero;
        noise where the gradient is zero only up to rounding.
    """
    parts = list(_distances_in_batches(network, points, probes, seed))
    return [torch.cat(layer) for layer in zip(*parts, strict=True)]


def _distances_in_batches(
    network: nn.Module, points: torch.Tensor, probes: int | None, seed: int
) -> Iterator[list[torch.Tensor]]:
    probes = None if probes is None else checked("probes", probes, int, at_least=1)
    steps = PiecewiseAffine(network, _shape_of(points))
    dimension = points[0].numel()
    generator = torch.Generator().manual_seed(seed)
    count = dimension if probes is None else probes
    for some in points.detach().cpu().double().split(max(1, PROBES // count)):
        values: list[torch.Tensor] = []
        squares: list[torch.Tensor] = []
        for first in range(0, count, PROBES):
            size = min(PROBES, count - first)
            if probes is None:
                directions = torch.zeros(size, dimension, dtype=torch.float64)
                directions[torch.arange(size), first + torch.arange(size)] = 1.0
            else:
                directions = torch.randn(size, dimension, generator=generator, dtype=torch.float64)
            layers = _local_values(steps, some, directions.reshape(size, *some.shape[1:]))
            values = [layer[:, 0] for layer in layers]
            parts = [((layer[:, 1:] - layer[:, :1]) ** 2).sum(1) for layer in layers]
            squares = [a + b for a, b in zip(squares, parts, strict=True)] if squares else parts
        share = 1.0 if probes is None else 1 / probes
        yield [
            # Where z and its gradient are both zero, as in a dead region: no hyperplane.
            torch.where(square > 0, z.abs() / (square * share).sqrt(), torch.inf)
            for z, square in zip(values, squares, strict=True)
        ]


def _local_values(
    steps: PiecewiseAffine, points: torch.Tensor, directions: torch.Tensor
) -> list[torch.Tensor]:
    """Each activation layer's input (n, 1 + P, units): n points and P directions by their map."""
    offsets = torch.cat([torch.zeros_like(directions[:1]), directions])

    def hold(node: fx.Node, source: torch.Tensor) -> torch.Tensor:
        return steps.hold(node, source, source.flatten(1)[:: len(offsets)])

    layers = _values(steps, (points[:, None] + offsets).flatten(0, 1), hold)
    return [layer.unflatten(0, (len(points), -1)) for layer in layers]


@outside_torch_modes
def count_by_local_map(
    network: nn.Module,
    points: torch.Tensor,
    radius: float,
    *,
    probes: int | None = None,
    seed: int = 0,
) -> np.ndarray:
    """How many units' zero sets pass within ``radius`` of inputs: counts (n, activation layers).

    By ``fold_distances``, with its arguments.

    >>> network = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> with torch.no_grad():
    ...     network[0].weight.copy_(torch.eye(2, 3)), network[0].bias.zero_()
    (..., ...)
    >>> count_by_local_map(network, torch.tensor([[0.1, 0.3, 9.0]]), radius=0.2).tolist()
    [[1]]
    """
    parts = _distances_in_batches(network, points, probes, seed)
    counts = [[(layer <= radius).sum(1) for layer in part] for part in parts]
    by_layer = [torch.cat(layer).numpy() for layer in zip(*counts, strict=True)]
    return np.array(by_layer, dtype=int).reshape(-1, len(points)).T


def sample_ball(count: int, dimension: int, generator: torch.Generator) -> torch.Tensor:
    """Points (count, dimension), uniform in the unit ball.

    They are the first coordinates of uniform points on the sphere in dimension + 2 (Harman and
    Lacko 2010, as analysed by Voelker et al. 2017).
    """
    normal = torch.randn(count, dimension + 2, generator=generator, dtype=torch.float64)
    return (normal / normal.norm(dim=1, keepdim=True))[:, :dimension]


@outside_torch_modes
def count_by_sampling(
    network: nn.Module, points: torch.Tensor, radius: float, *, samples: int, seed: int = 0
) -> np.ndarray:
    """How many units change sign among samples of a ball: counts (n, activation layers).

    "Batch Normalization Explained", Sect. 3.3, samples too, but counts facets. A lower bound: a
    zero set is seen if it separates a sample from the centre, which gets rare in high dimension
    (``detection_probability``).

    Args:
        network: piecewise affine; see ``PiecewiseAffine``.
        points: (n, *input shape), the centres.
        radius: of the balls.
        samples: per ball.
        seed: of the samples.
    """
    samples = checked("samples", samples, int, at_least=1)
    steps = PiecewiseAffine(network, _shape_of(points))
    generator = torch.Generator().manual_seed(seed)
    counts = []
    for point in points.detach().cpu().double():
        changed: list[torch.Tensor] = []
        for first in range(0, samples, PROBES):
            size = min(PROBES, samples - first)
            offsets = radius * sample_ball(size, point.numel(), generator)
            batch = torch.cat([point[None], point + offsets.reshape(size, *point.shape)])
            signs = [layer > 0 for layer in _values(steps, batch, steps.plain)]
            parts = [(layer[1:] != layer[0]).any(0) for layer in signs]
            changed = [a | b for a, b in zip(changed, parts, strict=True)] if changed else parts
        counts.append([int(layer.sum()) for layer in changed])
    return np.array(counts)


def _shape_of(points: torch.Tensor) -> tuple[int, ...]:
    """The shape of each point; raises ``UserError`` if there are none."""
    if not len(points):
        raise UserError("points: there are none; give (n, *input shape) with n of at least 1")
    return tuple(points.shape[1:])


def _values(steps: PiecewiseAffine, points: torch.Tensor, step: Step) -> list[torch.Tensor]:
    """Each activation layer's input (P, units); ``step`` computes what is not affine."""
    state, inputs = steps.start(points), []
    with torch.no_grad():
        for _, node, source in steps.walk(state):
            if steps.kinds[node] == "activation":
                inputs.append(source.flatten(1))
            state[node] = step(node, source)
    return inputs


def detection_probability(
    distances: np.ndarray | torch.Tensor | float, radius: float, dimension: int, samples: int
) -> np.ndarray:
    """The probability that samples of a ball find a hyperplane at these distances from its centre.

    A uniform point of the d-dimensional unit ball lies beyond a hyperplane at distance t with
    probability p(t) = I_{1 - t²}((d + 1) / 2, 1/2) / 2, I the regularized incomplete beta function;
    m samples find it with probability 1 - (1 - p)^m. Summed over a layer's ``fold_distances`` this
    is the expected ``count_by_sampling``, where the ball is not folded.

    In the dimension of a CIFAR image a million samples rarely find a hyperplane at a tenth of the
    radius:

    >>> round(float(detection_probability(0.1, 1, 3072, 10**6)), 3)
    0.014
    """
    share = np.minimum(np.asarray(distances) / radius, 1.0)
    single = 0.5 * betainc((dimension + 1) / 2, 0.5, 1 - share**2)
    return -np.expm1(samples * np.log1p(-single))
