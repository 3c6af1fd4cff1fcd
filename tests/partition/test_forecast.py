"""How many regions there will be, beside how many there are."""

import re

import pytest
import torch
from torch import nn

from bnrecon.partition import forecast, partition, random_network, rectangle, slice_along
from bnrecon.runtime.errors import UserError


def square(side):
    return slice_along(torch.zeros(2), torch.eye(2), rectangle((-side, -side), (side, side)))


@pytest.mark.parametrize("units", [1, 5, 30])
def test_it_is_exact_for_lines_in_general_position(units):
    torch.manual_seed(units)
    network = nn.Sequential(nn.Linear(2, units), nn.ReLU())
    assert forecast(network, square(2)) == len(partition(network, square(2)).regions)


@pytest.mark.parametrize("side", [0.25, 1.0])
@pytest.mark.parametrize(("width", "depth"), [(30, 2), (60, 2), (30, 4)])
def test_it_is_near_for_deep_networks(width, depth, side):
    network = random_network(width, depth, batch_norm=False)
    regions = len(partition(network, square(side)).regions)
    assert 0.4 < forecast(network, square(side)) / regions < 2


def test_of_many_lines_some_pairs_are_compared(monkeypatch):
    network = random_network(300, 1, batch_norm=False)
    whole = forecast(network, square(2))
    monkeypatch.setattr("bnrecon.partition.forecasting.CHORDS", 100)
    assert forecast(network, square(2)) == pytest.approx(whole, rel=0.2)


def test_what_has_too_many_regions_is_told_a_window_that_fits():
    network = random_network(60, 2, batch_norm=False)
    with pytest.raises(UserError, match="max_regions=1000 ") as refused:
        partition(network, square(2), max_regions=1000)
    share = float(re.search(r"with ([\d.]+) of its sides", str(refused.value))[1])
    assert share < 1
    assert 100 < len(partition(network, square(2 * share)).regions) < 2000
