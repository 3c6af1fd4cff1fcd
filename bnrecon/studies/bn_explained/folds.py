"""Random folds at hyperplanes of layer 1: their angles, and how sigma changes them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from bnrecon.studies.bn_explained.digit_vectors import digit_vectors
from bnrecon.studies.bn_explained.dihedral import Fold, formula_angles, measured_angles
from bnrecon.studies.bn_explained.small_networks import SLOPES, Layer, SmallNetwork, draw_network

__all__ = ["draw_fold", "measure_folds", "measure_spread", "sweep"]

POINTS = 64  # of a batch
FACTORS = tuple(10.0**power for power in np.linspace(-4, 4, 33))  # of sigma


def draw_fold(inputs: int, units: int, slope: float, generator: np.random.Generator) -> Fold:
    """A random first layer with batch statistics, a unit i of it and a random w_2,k.

    The facets meet at a random point of H_1,i: mu_2,k is the output there, and does not enter
    the angles.
    """
    points = generator.normal(size=(POINTS, inputs))
    network = draw_network(points, (units,), slope, generator)
    unit, layer = int(generator.integers(units)), network.layers[0]
    normal, point = layer.weight[unit], generator.normal(size=inputs)
    point = point - (point @ normal - layer.mean[unit]) / (normal @ normal) * normal
    return Fold(network, generator.normal(size=units), unit, point)


def _compare(fold: Fold) -> dict[str, float]:
    return formula_angles(fold) | measured_angles(fold)


def measure_folds(activation: str, inputs: int, units: int, folds: int) -> pd.DataFrame:
    """One row per random fold: angles in radians, by formula and measured."""
    rows = []
    for seed in range(folds):
        generator = np.random.Generator(np.random.Philox(seed))
        fold = draw_fold(inputs, units, SLOPES[activation], generator)
        row = {"kind": "random", "activation": activation, "inputs": inputs, "units": units}
        rows.append(row | {"seed": seed} | _compare(fold))
    return pd.DataFrame(rows)


def sweep(activation: str, seeds: int) -> pd.DataFrame:
    """One row per fold and factor that sigma_1,i of its unit alone is multiplied by.

    The weights and the other sigma stay. By Eq. 24 the angles depend on w_1,j / sigma_1,j up to a
    common factor: what counts is sigma_1,i / ||w_1,i|| relative to that of the other units.
    """
    rows = []
    for seed in range(seeds):
        generator = np.random.Generator(np.random.Philox(seed))
        fold = draw_fold(3, 6, SLOPES[activation], generator)
        layer = fold.network.layers[0]
        for factor in FACTORS:
            deviation = layer.deviation.copy()
            deviation[fold.unit] *= factor
            scaled = Layer(layer.weight, layer.mean, deviation)
            network = SmallNetwork((scaled,), fold.network.slope)
            found = formula_angles(Fold(network, fold.weight, fold.unit, fold.point))
            row = {"kind": "sweep", "activation": activation, "inputs": 3, "units": 6}
            rows.append(row | {"seed": seed, "factor": factor} | found)
    return pd.DataFrame(rows)


def measure_spread(units: int) -> pd.DataFrame:
    """One row: sigma / ||w|| of random units on the digits, smallest and largest to the median."""
    images = digit_vectors()
    generator = np.random.Generator(np.random.Philox(0))
    weight = generator.normal(size=(units, images.shape[1]))
    spread = (images @ weight.T).std(0) / np.linalg.norm(weight, axis=1)
    spread /= np.median(spread)
    row = {"kind": "spread", "activation": "any", "inputs": images.shape[1], "units": units}
    return pd.DataFrame([row | {"smallest": spread.min(), "largest": spread.max()}])
