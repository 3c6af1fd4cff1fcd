"""Deeper sources (Burkholz 2024, Theorem 2.5): how often L layers become a random target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from scipy import stats

from bnrecon.construction.deep import (
    balanced_widths,
    draw_deep,
    generic_rank,
    least_total_width,
    solve_deep,
)

__all__ = ["BEYOND", "SETTINGS", "SUCCESS", "Setting", "success_rates"]

SUCCESS = 1e-8  # relative error up to which a target counts as rebuilt
BEYOND = (-1, 0, 1, 2, 4, 8)  # total width minus n + L - 1

NARROW = {"": "", "first": ", c_1 < c0 k²", "last": ", c_(L-1) = c0 < c2"}


@dataclass(frozen=True)
class Setting:
    """A target layer and the depth of its source.

    Args:
        outputs: c2 of the target.
        inputs: c0 of the target.
        taps: k² of its kernel.
        layers: L, the depth of the source.
        narrow: a counterexample within the theorem's (i) to (iii): ``"first"`` lets c_1 fall below
            c0 k², ``"last"`` gives the last hidden layer c0 channels, fewer than c2.
    """

    outputs: int
    inputs: int
    taps: int
    layers: int
    narrow: str = ""

    @property
    def name(self) -> str:
        """As tables call it."""
        side = round(self.taps**0.5)
        kind = "linear" if self.taps == 1 else f"{side}x{side} kernel first"
        return f"{self.outputs}x{self.inputs}, {kind}{NARROW[self.narrow]}"

    @property
    def equations(self) -> int:
        """N = c2 c0 k²."""
        return self.outputs * self.inputs * self.taps

    def widths(self, beyond: int) -> tuple[int, ...]:
        """The layers' widths, of total n + L - 1 + ``beyond``."""
        total = least_total_width(self.equations, self.layers) + beyond
        fan_in = self.inputs * self.taps
        if self.narrow == "last":
            hidden = balanced_widths(total - self.outputs, self.inputs, self.layers - 1, fan_in)
            return (*hidden, self.outputs)
        least = 1 if self.narrow else fan_in
        return balanced_widths(total, self.outputs, self.layers, least)

    def is_low_rank(self, widths: tuple[int, ...]) -> bool:
        """Whether a layer is so narrow that the product has a lower rank than the target."""
        return min(widths) < min(self.outputs, self.inputs * self.taps)


SETTINGS = (
    *(Setting(4, 4, 1, layers) for layers in (2, 3, 4)),
    *(Setting(3, 2, 9, layers) for layers in (2, 3, 4)),
    *(Setting(4, 3, 9, layers) for layers in (2, 3, 4)),
    Setting(2, 2, 9, 4),
    Setting(2, 2, 9, 4, narrow="first"),
    Setting(10, 3, 1, 3),
    Setting(10, 3, 1, 3, narrow="last"),
)


def success_rates(setting: Setting, draws: int, starts: int = 8) -> pd.DataFrame:
    """The share of draws rebuilt by ``solve_deep``, for total widths around n + L - 1.

    Args:
        setting: the target layer and the depth of its source.
        draws: targets and sources per total width.
        starts: random starts of the search per draw.

    Returns:
        One row per total width; ``low`` and ``high`` are the exact 95% interval of the share.
    """
    tried = [(beyond, setting.widths(beyond)) for beyond in BEYOND]
    return pd.DataFrame(
        [
            _rate(setting, beyond, widths, draws, starts)
            for beyond, widths in tried
            if not setting.is_low_rank(widths)
        ]
    )


def _rate(
    setting: Setting, beyond: int, widths: tuple[int, ...], draws: int, starts: int
) -> dict[str, Any]:
    errors = [_error(setting, widths, starts, seed) for seed in range(draws)]
    successes = sum(error <= SUCCESS for error in errors)
    interval = stats.binomtest(successes, draws).proportion_ci(0.95)
    return {
        "target": setting.name,
        "layers": setting.layers,
        "n": setting.equations,
        "widths": ", ".join(map(str, widths)),
        "beyond": beyond,
        "reachable_dimensions": generic_rank(draw_deep(setting.inputs, setting.taps, widths, 0)),
        "rebuilt": successes,
        "draws": draws,
        "low": interval.low,
        "high": interval.high,
        "median_error": float(torch.tensor(errors).median()),
        "starts": starts,
    }


def _error(setting: Setting, widths: tuple[int, ...], starts: int, seed: int) -> float:
    """The relative error of one draw, the best of all starts."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    shape = (setting.outputs, setting.inputs * setting.taps)
    target = torch.randn(shape, generator=generator, dtype=torch.float64)
    weights = draw_deep(setting.inputs, setting.taps, widths, seed)
    return solve_deep(target, weights, starts, seed=seed).relative_error
