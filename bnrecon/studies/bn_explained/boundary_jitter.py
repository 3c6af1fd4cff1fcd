"""How the decision boundary of a toy classifier varies with the mini-batch, and its margins."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch
from torch import nn

from bnrecon.partition import Slice, rectangle, slice_along
from bnrecon.studies.bn_explained.batch_statistics import finite_population
from bnrecon.studies.bn_explained.boundaries import (
    decision_boundary,
    distance_between,
    distances_to,
)
from bnrecon.studies.bn_explained.toy_classifier import (
    draw_classifier,
    run_batches,
    train,
    two_moons,
)

__all__ = [
    "GROUPS",
    "INITIAL",
    "SAMPLES",
    "SIZES",
    "TRAININGS",
    "draw_boundaries",
    "expected_ratio",
    "margins",
    "measure_seed",
]

SIZES = (16, 256)  # of the figure's mini-batches
SAMPLES = 1024  # of the training set
WIDTHS = (32, 32)
INITIAL = "initialization"
TRAININGS = {f"B = {size}": (size, 1) for size in SIZES}
# Gradients over 256 points, normalized in groups of B: only the normalization's noise differs.
GROUPS = {f"{256 // size} groups of {size}": (size, 256 // size) for size in (64, 16, 8)}
BEYOND = 0.3  # of the window, to each side of the data
STEP = 1 / 300  # along a boundary, in the window's larger side
NEAREST = 0.05  # share of the training points whose distance is the margin
POINTS = 256  # training points that are drawn


def expected_ratio() -> float:
    """How much larger small deviations are for mini-batches of 16 than of 256 (Eq. 13).

    The root of 256 / 16, times the factors for mini-batches without replacement.

    >>> round(expected_ratio(), 2)
    4.58
    """
    small, large = (finite_population(size, SAMPLES) / size for size in SIZES)
    return (small / large) ** 0.5


def measure_seed(seed: int, updates: int, batches: int, grid: int) -> pd.DataFrame:
    """Variability of the boundary and margins, for one training set and network.

    Args:
        seed: of the data, the weights and the mini-batches.
        updates: of each training.
        batches: mini-batches of each size.
        grid: probes along each side of the window.

    Returns:
        Of kind ``margins`` a row for each state of the network, as by ``margins``. Of kind
        ``jitter`` one for each size of the mini-batches, too: ``changed`` is the share of probes
        whose class differs from the one by the full data's statistics, ``distance`` the mean of
        ``distance_between`` the boundaries of a mini-batch and of the full data; in ``without``
        mini-batches there is no boundary in the window, and in ``one_sided`` all outputs have one
        sign.
    """
    data = two_moons(SAMPLES, seed)
    plane = _window(data[0])
    low, high = plane.window.min(0), plane.window.max(0)
    sides = [np.linspace(a, b, grid) for a, b in zip(low, high, strict=True)]
    probes = torch.from_numpy(np.stack(np.meshgrid(*sides), -1).reshape(-1, 2))
    rows: list[dict] = []
    for state, network in _networks(data, updates, seed, (INITIAL, *TRAININGS, *GROUPS)).items():
        boundary = decision_boundary(network, data[0], plane)
        with torch.no_grad():
            outputs, full = run_batches(network, data[0][None], probes)
        rows.append({"kind": "margins", "state": state} | margins(outputs[0], data, boundary))
        for size in SIZES if state not in GROUPS else ():
            drawn = _mini_batches(data[0], size, batches, seed)
            with torch.no_grad():
                outputs, beside = run_batches(network, drawn, probes)
            own = [decision_boundary(network, batch, plane) for batch in drawn]
            apart = [distance_between(one, boundary, STEP * (high - low).max()) for one in own]
            one_sided = (outputs > 0).all(1) | (outputs < 0).all(1)
            row = {"kind": "jitter", "state": state, "batch": size, "batches": batches}
            row |= {"changed": float(((beside > 0) != (full > 0)).double().mean())}
            row |= {"distance": float(pd.Series(apart).mean())}  # of those that have a boundary
            row |= {"without": sum(not len(one) for one in own)}
            rows.append(row | {"one_sided": int(one_sided.sum())})
    return pd.DataFrame(rows).assign(seed=seed)


def margins(
    outputs: torch.Tensor, data: tuple[torch.Tensor, torch.Tensor], boundary: np.ndarray
) -> dict[str, float]:
    """How far the training points are from the boundary; negative where they are misclassified.

    Args:
        outputs: (N,), of the training points.
        data: the points (N, 2) and their classes (N,).
        boundary: (S, 2, 2).

    Returns:
        ``accuracy``; the mean distance of the 5% ``nearest`` points, and the ``smallest``; NaN
        where there is no boundary.
    """
    right = ((outputs > 0) == (data[1] > 0)).numpy()
    accuracy = {"accuracy": float(right.mean())}
    if not len(boundary):
        return accuracy | {"nearest": float("nan"), "smallest": float("nan")}
    signed = np.sort(np.where(right, 1, -1) * distances_to(data[0].numpy(), boundary))
    count = round(NEAREST * len(signed))
    return accuracy | {"nearest": float(signed[:count].mean()), "smallest": float(signed[0])}


def draw_boundaries(seed: int, updates: int, batches: int) -> pd.DataFrame:
    """The figure's lines and points for one seed.

    Returns:
        A row for each boundary, for the window and for the points of each class, with the
        coordinates as text in ``path``. The first boundary of a state, of ``batch`` N, is the full
        data's.
    """
    data = two_moons(SAMPLES, seed)
    plane = _window(data[0])
    points, labels = (part[:POINTS] for part in data)
    rows: list[dict] = [{"kind": "window", "path": _text(plane.window)}]
    for label in (0, 1):
        rows.append({"kind": "points", "label": label, "path": _text(points[labels == label])})
    drawn = [data[0]]
    for size in SIZES:
        drawn += _mini_batches(data[0], size, batches, seed)
    for state, network in _networks(data, updates, seed, (INITIAL, *TRAININGS)).items():
        for inputs in drawn:
            path = _text(decision_boundary(network, inputs, plane))
            rows.append({"kind": "boundary", "state": state, "batch": len(inputs), "path": path})
    return pd.DataFrame(rows).assign(seed=seed)


def _window(points: torch.Tensor) -> Slice:
    low, high = points.min(0).values - BEYOND, points.max(0).values + BEYOND
    return slice_along(torch.zeros(2), torch.eye(2), rectangle(low.numpy(), high.numpy()))


def _networks(
    data: tuple[torch.Tensor, torch.Tensor], updates: int, seed: int, states: Iterable[str]
) -> dict[str, nn.Sequential]:
    """The network at initialization, or after a training from there, for each state."""
    first = draw_classifier(WIDTHS, seed)
    found = {}
    for state in states:
        found[state] = copy.deepcopy(first)
        if state != INITIAL:
            train(found[state], data, *(TRAININGS | GROUPS)[state], updates, seed)
    return found


def _mini_batches(points: torch.Tensor, size: int, count: int, seed: int) -> torch.Tensor:
    """Mini-batches (count, size, 2), each drawn without replacement."""
    generator = np.random.Generator(np.random.Philox(key=(seed, size)))
    chosen = [generator.permutation(len(points))[:size] for _ in range(count)]
    return points[torch.from_numpy(np.stack(chosen))]


def _text(coordinates: np.ndarray | torch.Tensor) -> str:
    return " ".join(f"{value:.3f}" for value in np.asarray(coordinates).ravel())
