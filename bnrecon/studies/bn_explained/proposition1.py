"""Proposition 1: the next weights absorb the scale gamma; if negative, with signs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from torch import nn

from bnrecon.reproduction.parts import Decisions, below, part, sweep
from bnrecon.studies.bn_explained.small_networks import SLOPES

SEEDS = {"smoke": 2, "laptop": 20, "paper": 100}
INPUTS, HIDDEN, OUTPUTS, POINTS = 5, 16, 8, 64
TOLERANCE = 1e-10
ACTIVATIONS = ("ReLU", "leaky ReLU", "absolute value")
SIGNS = ("positive", "of both signs", "one zero")


class TwoLayers(nn.Module):
    """Linear, BatchNorm, activation, twice (Eq. 27), float64."""

    def __init__(self, activation: str):
        super().__init__()
        self.first = nn.Linear(INPUTS, HIDDEN, bias=False)
        self.norm1 = nn.BatchNorm1d(HIDDEN)
        self.second = nn.Linear(HIDDEN, OUTPUTS, bias=False)
        self.norm2 = nn.BatchNorm1d(OUTPUTS)
        self.activation = nn.LeakyReLU(SLOPES[activation])
        self.double()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """z_2 (B, OUTPUTS)."""
        hidden = self.activation(self.norm1(self.first(inputs)))
        return self.activation(self.norm2(self.second(hidden)))


@torch.no_grad()
def draw_network(activation: str, signs: str, seed: int) -> TwoLayers:
    """Random weights, scales between 1/2 and 3/2 in size, and normal shifts."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = TwoLayers(activation)
        for norm in (network.norm1, network.norm2):
            norm.weight.copy_(torch.rand_like(norm.weight) + 0.5)
            norm.bias.copy_(torch.randn_like(norm.bias))
    if signs == "of both signs":
        network.norm1.weight[::2] *= -1
    elif signs == "one zero":
        network.norm1.weight[0] = 0
    return network


@torch.no_grad()
def absorb_as_printed(network: TwoLayers, factors: torch.Tensor | None = None) -> TwoLayers:
    """Set gamma = 1 in the first layer by Eq. 28, 29: w' = gamma w_2, beta' = beta / gamma.

    ``factors`` multiply w_2 instead of gamma.
    """
    network = copy.deepcopy(network)
    network.second.weight.mul_(network.norm1.weight if factors is None else factors)
    network.norm1.bias.div_(network.norm1.weight)
    network.norm1.weight.fill_(1)
    return network


def absorb_sizes(network: TwoLayers) -> TwoLayers:
    """The same with w' = |gamma| w_2: right for a(u) = |u|, where a(gamma u) = |gamma| a(u)."""
    return absorb_as_printed(network, network.norm1.weight.abs())


@torch.no_grad()
def absorb_with_signs(network: TwoLayers) -> TwoLayers:
    """Set gamma = 1 in the first layer for any gamma.

    For gamma < 0, the row of W_1 and its mean change sign, and |gamma| is absorbed. A unit with
    gamma = 0 is a constant, which the next mean absorbs.
    """
    network = copy.deepcopy(network)
    norm, second = network.norm1, network.second
    sign = torch.where(norm.weight < 0, -1.0, 1.0).double()
    network.first.weight.mul_(sign[:, None])
    norm.get_buffer("running_mean").mul_(sign)
    scale, constant = norm.weight.abs(), norm.weight == 0
    values = network.activation(norm.bias)[constant]
    network.norm2.get_buffer("running_mean").sub_(second.weight[:, constant] @ values)
    second.weight.mul_(scale)
    norm.bias.div_(scale.masked_fill(constant, 1))
    norm.weight.fill_(1)
    return network


RECIPES: dict[str, tuple[Callable[[TwoLayers], TwoLayers], str]] = {  # with their columns' titles
    "printed": (absorb_as_printed, "difference, Eq. 28"),
    "sizes": (absorb_sizes, "difference, abs(γ) for γ"),
    "signed": (absorb_with_signs, "difference, signs absorbed by W"),
}


@torch.no_grad()
def compare_absorptions(activation: str, signs: str, seeds: int) -> pd.DataFrame:
    """One row per seed: largest differences of outputs, in eval mode and with batch statistics.

    They are relative to the largest output.
    """
    rows = []
    for seed in range(seeds):
        network = draw_network(activation, signs, seed)
        generator = torch.Generator().manual_seed(seed)
        points = torch.randn(POINTS, INPUTS, generator=generator, dtype=torch.float64)
        row = {"activation": activation, "signs": signs, "seed": seed}
        network.train()(points)  # running statistics that are not trivial
        for name, (absorb, _) in RECIPES.items():
            absorbed = absorb(network)
            for mode in ("eval", "train"):
                copies = (copy.deepcopy(one) for one in (network, absorbed))
                one, other = (each.train(mode == "train")(points) for each in copies)
                row[f"{name}_{mode}"] = float((one - other).abs().max() / one.abs().max())
        rows.append(row)
    return pd.DataFrame(rows)


def _worst(rows: pd.DataFrame, name: str) -> float:
    """The largest difference in both modes; NaN if one of them is undefined."""
    return float(rows[[f"{name}_eval", f"{name}_train"]].max(skipna=False).max(skipna=False))


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per activation and signs."""
    lines = []
    for (activation, signs), group in rows.groupby(["activation", "signs"], sort=False):
        line = {"activation": activation, "entries of γ": signs}
        for name, (_, title) in RECIPES.items():
            error = _worst(group, name)
            line[title] = "undefined" if np.isnan(error) else f"{error:.1g}"
        lines.append(line | {"networks": len(group)})
    return pd.DataFrame(lines)


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide Proposition 1 and its proof."""
    if set(rows["signs"]) != set(SIGNS):  # too little to decide
        return {}, {}
    positive, both = (rows[rows["signs"] == signs] for signs in SIGNS[:2])
    negative = both["printed_eval"]
    numbers = {
        "networks": len(rows),
        "repaired": _worst(rows, "signed"),
        "positive": _worst(positive, "printed"),
        "least": negative.min(),
        "most": negative.max(),
    }
    as_printed: bool | str = bool(negative.max() < TOLERANCE)
    if numbers["positive"] < TOLERANCE < negative.min():
        as_printed = "needs a condition"
    repaired = numbers["repaired"] < TOLERANCE
    return {"Proposition 1": repaired, "Proposition 1, Eq. 28, 29": as_printed}, numbers


OVER = {"activation": ACTIVATIONS, "signs": SIGNS}
TASKS = sweep(compare_absorptions, "{activation}, gamma {signs}", OVER, {"seeds": SEEDS})
PART = part(__file__, TASKS, summarize, decide=decide, excerpt=below)
