"""Deeper sources (Burkholz 2024, Thm 2.5): how often L layers of a total width become a random target."""

from __future__ import annotations

import io
from dataclasses import dataclass

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
from bnrecon.reporting.figures import canvas

__all__ = ["SETTINGS", "Setting", "draw", "success_rates", "summary"]


SUCCESS = 1e-8  # relative error from which a target counts as rebuilt


BEYOND = (-1, 0, 1, 2, 4, 8)


@dataclass(frozen=True)
class Setting:
    """A target layer and the depth of its source.

    ``narrow`` makes a counterexample within the theorem's (i) to (iii): ``"first"`` lets c_1 fall below c0 · taps, ``"last"`` gives the
    last hidden layer c0 channels, fewer than c2.
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
        return f"{self.outputs}x{self.inputs}, {kind}{ {'': '', 'first': ', c_1 < c0 k²', 'last': ', c_(L-1) = c0 < c2'}[self.narrow] }"

    @property
    def equations(self) -> int:
        """N = c2 c0 taps."""
        return self.outputs * self.inputs * self.taps

    def widths(self, beyond: int) -> tuple[int, ...]:
        """Widths of total n + L - 1 + ``beyond``."""
        total = least_total_width(self.equations, self.layers) + beyond
        if self.narrow == "last":
            return (
                *balanced_widths(
                    total - self.outputs, self.inputs, self.layers - 1, self.inputs * self.taps
                ),
                self.outputs,
            )
        return balanced_widths(
            total, self.outputs, self.layers, 1 if self.narrow else self.inputs * self.taps
        )


SETTINGS = (
    *(Setting(4, 4, 1, layers) for layers in (2, 3, 4)),
    *(Setting(3, 2, 9, layers) for layers in (2, 3, 4)),
    *(Setting(4, 3, 9, layers) for layers in (2, 3, 4)),
    Setting(2, 2, 9, 4),
    Setting(2, 2, 9, 4, narrow="first"),
    Setting(10, 3, 1, 3),
    Setting(10, 3, 1, 3, narrow="last"),
)


def success_rates(
    settings: tuple[Setting, ...] = SETTINGS, draws: int = 20, starts: int = 8
) -> pd.DataFrame:
    """The share of draws rebuilt by ``solve_deep`` for totals around n + L - 1, with the exact 95% interval of a share."""
    lines = []
    for setting in settings:
        for beyond in BEYOND:
            widths = setting.widths(beyond)
            if min(widths) < min(setting.outputs, setting.inputs * setting.taps):
                continue  # a product of lower rank than the target
            errors = []
            for seed in range(draws):
                generator = torch.Generator().manual_seed(10_000 + seed)
                target = torch.randn(
                    setting.outputs,
                    setting.inputs * setting.taps,
                    generator=generator,
                    dtype=torch.float64,
                )
                weights = draw_deep(setting.inputs, setting.taps, widths, seed)
                errors.append(solve_deep(target, weights, starts, seed=seed).relative_error)
            successes = sum(error <= SUCCESS for error in errors)
            interval = stats.binomtest(successes, draws).proportion_ci(0.95)
            rank = generic_rank(draw_deep(setting.inputs, setting.taps, widths, 0))
            lines.append(
                {
                    "target": setting.name,
                    "L": setting.layers,
                    "n": setting.equations,
                    "widths": ", ".join(map(str, widths)),
                    "beyond n + L - 1": beyond,
                    "reachable dimensions": rank,
                    "rebuilt": successes,
                    "draws": draws,
                    "low": interval.low,
                    "high": interval.high,
                    "median error": float(torch.tensor(errors).median()),
                    "starts": starts,
                }
            )
    return pd.DataFrame(lines)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a target and depth: draws rebuilt for each total, and how many of the n dimensions can be reached at n + L."""
    lines = []
    for (target, layers), group in frame.groupby(["target", "L"], sort=False):
        line = {"target": target, "L": layers, "n": int(group["n"].iloc[0])}
        at = group[group["beyond n + L - 1"] == 1].iloc[0]
        line["widths at n + L"] = at["widths"]
        line["reachable dimensions at n + L"] = f"{at['reachable dimensions']} of {at['n']}"
        for beyond in BEYOND:
            found = group[group["beyond n + L - 1"] == beyond]
            offset = f" + L {'-' if beyond < 1 else '+'} {abs(beyond - 1)}".replace(" + 0", "")
            line[f"n{offset}"] = (
                "" if found.empty else f"{found['rebuilt'].iloc[0]} of {found['draws'].iloc[0]}"
            )
        lines.append(line)
    return pd.DataFrame(lines)


def draw(frame: pd.DataFrame, file: io.BytesIO, kind: str) -> None:
    """Share of draws rebuilt, and the median error, against total width, a line for each depth."""
    names = list(dict.fromkeys(frame["target"]))
    with canvas(
        file,
        kind,
        2,
        len(names),
        figsize=(3 * len(names), 5.4),
        sharex=True,
        sharey="row",
        squeeze=False,
    ) as (
        figure,
        grid,
    ):
        colours = {2: "#4c72b0", 3: "#dd8452", 4: "#55a868"}
        for column, name in enumerate(names):
            part = frame[frame["target"] == name]
            for layers, points in part.groupby("L"):
                share = points["rebuilt"] / points["draws"]
                spread = [
                    (share - points["low"]).clip(lower=0),
                    (points["high"] - share).clip(lower=0),
                ]
                x = (
                    points["beyond n + L - 1"] - 1 + 0.12 * (layers - 3)
                )  # side by side where they agree
                grid[0][column].errorbar(
                    x,
                    share,
                    spread,
                    marker="o",
                    capsize=2,
                    color=colours.get(layers),
                    label=f"L = {layers}",
                )
                grid[1][column].semilogy(
                    x, points["median error"], marker="o", color=colours.get(layers)
                )
            grid[0][column].set_title(name, fontsize=9)
            grid[1][column].set_xlabel("Σ c_l - (n + L)")
            for axes in grid[:, column]:
                axes.axvline(0, color="grey", linewidth=1, linestyle=":")
        grid[0][0].set_ylabel("share of draws rebuilt")
        grid[1][0].set_ylabel("median relative error")
        for axes in grid[0]:
            axes.legend(fontsize=8)
        figure.suptitle("Dotted: n + L (Thm 2.5)", fontsize=9)
