"""Forecasts of the number of regions, against the actual number."""

import re

import pytest
import torch
from planes import SQUARE, plane
from torch import nn

from bnrecon.partition import forecast, partition, random_network
from bnrecon.runtime.errors import UserError


class Pooled(nn.Sequential):
    """Units in pairs; the larger one counts."""

    def forward(self, x):
        return nn.functional.max_pool1d(super().forward(x).view(-1, 1, 16), 2)


@pytest.mark.parametrize(("kind", "units"), [*((nn.ReLU, n) for n in (1, 5, 30)), (Pooled, 16)])
def test_forecast_is_exact_for_lines_and_poolings_in_general_position(kind, units):
    torch.manual_seed(units)
    linear = nn.Linear(2, units)
    network = Pooled(linear) if kind is Pooled else nn.Sequential(linear, nn.ReLU())
    window = plane(2 * SQUARE)
    assert forecast(network, window) == len(partition(network, window).regions)


@pytest.mark.parametrize(
    ("pool", "count"), [(nn.MaxPool1d(3, 2, padding=1), 2), (nn.MaxPool1d(1), 1)], ids=str
)
def test_forecast_of_padded_and_single_windows(pool, count):
    """Of two units: the second window holds both, the first repeats one."""

    class Windows(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.pool = nn.Linear(2, 2, bias=False), pool

        def forward(self, x):
            return self.pool(self.linear(x).view(-1, 1, 2))

    torch.manual_seed(0)
    network = Windows()
    assert forecast(network, plane()) == len(partition(network, plane()).regions) == count


@pytest.mark.parametrize("side", [0.25, 1.0])
@pytest.mark.parametrize(("width", "depth"), [(30, 2), (60, 2), (30, 4)])
def test_forecast_is_near_for_deep_networks(width, depth, side):
    network = random_network(width, depth, batch_norm=False)
    window = plane(side * SQUARE)
    assert 0.4 < forecast(network, window) / len(partition(network, window).regions) < 2


def test_many_lines_are_compared_by_sampled_pairs(monkeypatch):
    network = random_network(300, 1, batch_norm=False)
    window = plane(2 * SQUARE)
    whole = forecast(network, window)
    monkeypatch.setattr("bnrecon.partition.forecasting.CHORDS", 100)
    assert forecast(network, window) == pytest.approx(whole, rel=0.2)


@pytest.mark.parametrize("depth", [2, 4])
def test_too_many_regions_suggest_a_smaller_window(depth):
    network, side = random_network(60, depth, batch_norm=False), plane(2 * SQUARE)
    least = forecast(network, side) + 1  # the actual number exceeds the forecast
    with pytest.raises(UserError, match=f"max_regions={least} ") as refused:
        partition(network, side, max_regions=least)
    assert "at 0.5 times its sides" in str(refused.value)
    with pytest.raises(UserError, match="max_regions=1000 ") as refused:
        partition(network, side, max_regions=1000)
    share = float(re.search(r"at ([\d.]+) times its sides", str(refused.value))[1])
    assert share < 1
    assert 100 < len(partition(network, plane(2 * share * SQUARE)).regions) < 2000


def test_no_window_is_suggested_if_none_fits():
    """All lines pass through the centre."""
    network = nn.Sequential(nn.Linear(2, 200, bias=False), nn.ReLU())
    with pytest.raises(UserError, match="max_regions=100 ") as refused:
        partition(network, plane(), max_regions=100)
    assert "times its sides" not in str(refused.value)
