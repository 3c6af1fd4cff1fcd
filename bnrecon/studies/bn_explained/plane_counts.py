"""How many folded hyperplanes of wide random networks pass by points of the plane."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from bnrecon.partition import (
    count_by_local_map,
    count_by_sampling,
    count_in_slice,
    detection_probability,
    fold_distances,
    partition,
)
from bnrecon.studies.bn_explained.plane_networks import SETTINGS, draw_layers, square
from bnrecon.studies.bn_explained.star import REACH, draw_star, grid, turned

__all__ = [
    "DEPTH",
    "LAYERS",
    "RADIUS",
    "RIM",
    "SAMPLES",
    "compare_counts",
    "count_at_star",
    "count_on_grid",
]

DEPTH = 11
LAYERS = (1, 7, 11)
RADIUS = 0.1
RIM = 2.0  # beyond it a point of the window is on its rim, which the star does not reach
SAMPLES = 256  # of a ball, where the paper's count is made


def _draw(width: int, setting: str, seed: int) -> torch.nn.Module:
    layers: torch.nn.Module = draw_layers((width,) * DEPTH, setting, draw_star(seed), seed)
    return layers


def _count(network: torch.nn.Module, points: np.ndarray) -> np.ndarray:
    """By the local affine map, at the layers of ``LAYERS``: (n, 3)."""
    counts = count_by_local_map(network, torch.from_numpy(points), RADIUS)
    return counts[:, [layer - 1 for layer in LAYERS]]


def count_on_grid(setting: str, width: int, side: int, seed: int = 0) -> pd.DataFrame:
    """One row per cell of the window (kind ``map``), and one per point of the star (``star``)."""
    cells = pd.DataFrame(grid(side), columns=["x", "y"]).round(4)
    counts = _count(_draw(width, setting, seed), grid(side))
    for layer, found in zip(LAYERS, counts.T, strict=True):
        cells[f"layer_{layer}"] = found
    star = pd.DataFrame(draw_star(seed), columns=["x", "y"])
    return pd.concat([cells.assign(kind="map"), star.assign(kind="star")]).assign(setting=setting)


def count_at_star(width: int, side: int, seed: int) -> pd.DataFrame:
    """One row per setting and layer: mean counts.

    ``data``: at the star. ``turned``: at the star turned about the origin by 90, 180, 270 degrees.
    ``window``: over the window, and its ``maximum``. ``rim``: over the window's rim. ``centred``:
    at the star moved to the origin, which only BN would see. ``origin``: at the origin.
    """
    star, cells = draw_star(seed), grid(side)
    rim = np.abs(cells).max(1) > RIM
    rows = []
    for setting in SETTINGS:
        network = _draw(width, setting, seed)
        window = _count(network, cells)
        found = {
            "data": _count(network, star).mean(0),
            "turned": _count(network, turned(star)).mean(0),
            "window": window.mean(0),
            "maximum": window.max(0),
            "rim": window[rim].mean(0),
            "centred": _count(network, star - star.mean(0)).mean(0),
            "origin": _count(network, np.zeros((1, 2)))[0],
        }
        for index, layer in enumerate(LAYERS):
            row = {"kind": "counts", "setting": setting, "seed": seed, "layer": layer}
            row |= {"width": width, "side": side}
            rows.append(row | {name: float(value[index]) for name, value in found.items()})
    return pd.DataFrame(rows)


def compare_counts(width: int, exact: bool, points: int) -> pd.DataFrame:
    """One row per setting and layer: counts summed over points, half of the star's, half anywhere.

    ``local``: by the local affine map. ``sampled``: units that change sign among samples of the
    ball, as in the paper. ``expected``: what sampling would find if the ball were not folded.
    ``units``, ``facets``: of the exact partition. ``deviation``: sum of absolute differences of
    ``local`` to ``units``, or to ``sampled``.
    """
    generator = np.random.Generator(np.random.Philox(key=(0, 3)))
    anywhere = generator.uniform(-REACH, REACH, (points - points // 2, 2))
    places = np.concatenate([draw_star(0)[: points // 2], anywhere])
    given = torch.from_numpy(places)
    rows = []
    for setting in SETTINGS:
        network = _draw(width, setting, 0)
        distances = fold_distances(network, given)
        sampled = count_by_sampling(network, given, RADIUS, samples=SAMPLES)
        folds = partition(network, square((0, 0), REACH + RADIUS)).folds if exact else None
        for layer in LAYERS:
            near = distances[layer - 1].numpy()
            local = (near <= RADIUS).sum(1)
            seen = sampled[:, layer - 1]
            row = {"kind": "comparison", "setting": setting, "layer": layer, "width": width}
            row |= {"points": len(places), "local": int(local.sum()), "sampled": int(seen.sum())}
            row["expected"] = float(detection_probability(near, RADIUS, 2, SAMPLES).sum())
            if folds is not None:
                own = folds.of(layer - 1)
                seen = count_in_slice(own, places, RADIUS)
                facets = count_in_slice(own, places, RADIUS, facets=True)
                row |= {"units": int(seen.sum()), "facets": int(facets.sum())}
            rows.append(row | {"deviation": int(np.abs(local - seen).sum())})
    return pd.DataFrame(rows)
