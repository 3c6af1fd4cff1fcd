"""Frozen layers and normalizations of Giannou et al. 2023: their distributions."""

import pytest
import torch

from bnrecon.construction.random_linear import random_linear, random_norm
from bnrecon.features.portable_random import Stream

STREAM = Stream(seed=0, layer=0)


@pytest.mark.parametrize("density", [1.0, 0.2])
def test_entries_are_uniform_with_variance_1_over_the_inputs_or_zero(density):
    weight = random_linear(50, 400, STREAM, "first", density).weight
    kept = weight[weight != 0]
    assert len(kept) / weight.numel() == pytest.approx(density, rel=0.05)
    assert 50 * float(kept.var()) == pytest.approx(1, rel=0.05)
    assert float(kept.abs().max()) == pytest.approx((3 / 50) ** 0.5, rel=1e-2)


def test_statistics_are_uniform_on_their_intervals():
    norm = random_norm(4000, STREAM, "first")
    for values, low, high in ((norm.running_mean, -1, 1), (norm.running_var, 0.5, 1.5)):
        assert low <= float(values.min()) < low + 0.01
        assert high - 0.01 < float(values.max()) <= high
        assert float(values.mean()) == pytest.approx((low + high) / 2, abs=0.05)
    assert norm.running_mean.dtype == torch.float64
