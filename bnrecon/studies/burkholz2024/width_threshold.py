"""How many features a target layer needs (Burkholz 2024, Lemma 2.1, Thms 2.2 and 2.3): success against width, over many draws."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pandas as pd
import torch
from scipy import stats

from bnrecon.construction.kernel_composition import embed, kernel_composition_system
from bnrecon.operators.eliminated import Pivoted
from bnrecon.operators.system import System
from bnrecon.reporting.figures import canvas

__all__ = [
    "SETTINGS",
    "Setting",
    "composed_error",
    "draw",
    "pathological_target",
    "random_target",
    "success_rates",
    "thresholds",
]


SUCCESS = 1e-6  # relative error up to which a draw counts as rebuilt; float64, condition numbers up to 1e6 or so


@dataclass(frozen=True)
class Setting:
    """Channels c2 and c0, the target's kernel side and those of the second and first source layer."""

    outputs: int
    inputs: int
    target_side: int
    second_side: int
    first_side: int

    @property
    def side(self) -> int:
        """dim(k2, k1) = k2 + k1 - 1."""
        return self.second_side + self.first_side - 1

    @property
    def equations(self) -> int:
        """N = c2 c0 |dim(k2, k1)|."""
        return self.outputs * self.inputs * self.side**2

    @property
    def minimum_width(self) -> int:
        """N - c2 + 1."""
        return self.equations - self.outputs + 1

    def has_pathological(self, width: int) -> bool:
        """Whether ``pathological_target`` makes one: max(n - c2, n - c0 |k_t|) < c1 < n."""
        alone = self.equations - self.inputs * self.target_side**2
        return max(self.minimum_width, alone + 1) <= width < self.equations

    @property
    def name(self) -> str:
        """As it stands in tables: the kernels, and Δk = dim(k2, k1) - k_t."""
        return f"k_t={self.target_side}, k_2={self.second_side}, k_1={self.first_side} (Δk={self.side - self.target_side})"


SETTINGS = (
    Setting(4, 3, 1, 1, 1),
    Setting(4, 3, 3, 3, 1),
    Setting(4, 3, 5, 5, 1),
    Setting(4, 3, 5, 3, 3),
    Setting(4, 3, 1, 1, 3),
    Setting(4, 3, 3, 3, 3),
)


def features(setting: Setting, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal A (c1, c0, k1, k1) and B (c2, c1, k2, k2), float64; fewer features are the first of more (up to n + 2)."""
    generator = torch.Generator().manual_seed(seed)
    most, one, two = setting.equations + 2, setting.first_side, setting.second_side
    first = torch.randn(most, setting.inputs, one, one, dtype=torch.float64, generator=generator)
    second = torch.randn(most, setting.outputs, two, two, dtype=torch.float64, generator=generator)
    return first[:width], second[:width].transpose(0, 1)


def random_target(setting: Setting, seed: int) -> torch.Tensor:
    """A normal target (c2, c0, k_t, k_t), drawn independently of the features."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    sides = (setting.target_side, setting.target_side)
    return torch.randn(
        setting.outputs, setting.inputs, *sides, dtype=torch.float64, generator=generator
    )


def pathological_target(setting: Setting, width: int, seed: int) -> torch.Tensor:
    """A target made from the features that c1 = ``width`` < n of them do not reach, though they are at least n - c2 + 1.

    The scales that keep every output's weights in proportion to the target's are a space of d = c1 + c2 - n < c2 dimensions.
    Take each of the first d outputs' weights to be what some scales reach while all other outputs, and the output's own entries
    outside the target's kernel, stay zero. Those scales fill the space, and the other outputs, whatever their weights, are
    zero for all of it. Such scales exist from c1 = n - c0 |k_t| + 1 features on.

    Raises ``ValueError`` for other widths.
    """
    if not setting.has_pathological(width):
        raise ValueError(
            f"{setting.name} has no pathological target of this kind for {width} features"
        )
    target = random_target(setting, seed)
    system = kernel_composition_system(target, *features(setting, width, seed), torch.device("cpu"))
    table = system.matrix.dense().reshape(setting.outputs, -1, width)
    kernel = embed(
        torch.ones(1, setting.inputs, setting.target_side, setting.target_side),
        (setting.side, setting.side),
    )
    inside = kernel.permute(0, 2, 3, 1).reshape(-1) > 0
    for output in range(width + setting.outputs - setting.equations):
        zero = torch.cat(
            [
                table[:output].flatten(0, 1),
                table[output][~inside],
                table[output + 1 :].flatten(0, 1),
            ]
        )
        scales = torch.linalg.svd(zero).Vh[
            -1
        ]  # in the null space of all rows that are to stay zero
        alone = (table[output][inside] @ scales).reshape(
            setting.target_side, setting.target_side, setting.inputs
        )
        target[output] = alone.permute(2, 0, 1) / alone.norm() * target[output].norm()
    return target


def composed_error(system: System) -> float:
    """Solve a small system by singular values and return ‖outer ∘ M inner - W‖ / ‖W‖ over the whole composed kernel.

    Below n features the second scales are eliminated whatever the width, as in Lemma 2.1, so that they are free.
    """
    n, width = system.matrix.shape
    operator, rhs = system.operator, system.rhs
    if width < n:
        operator = Pivoted(system.matrix, system.weight)
        rhs = operator.right_hand_side()
    inner = torch.linalg.lstsq(operator.dense(), rhs[:, None], driver="gelsd").solution[:, 0]
    product = system.matrix.matvec(inner)
    outer = (
        operator.second_scales(product)
        if width < n
        else torch.ones(len(system.weight), dtype=torch.float64)
    )
    return float(
        (product.reshape(system.weight.shape) * outer[:, None] - system.weight).norm()
        / system.weight.norm()
    )


def success_rates(
    settings: tuple[Setting, ...] = SETTINGS, draws: int = 50, below: int = 3
) -> pd.DataFrame:
    """The share of draws that are rebuilt for every width from ``below`` under n - c2 + 1 up to n + 1, random and pathological.

    ``low`` and ``high`` are the exact 95% interval of a share (Clopper and Pearson).
    """
    lines = []
    for setting in settings:
        for width in range(setting.minimum_width - below, setting.equations + 2):
            kinds = {"random": random_target}
            if setting.has_pathological(
                made := min(width, setting.equations - 1)
            ):  # at n: those that n - 1 do not reach
                kinds["pathological"] = lambda setting, seed, made=made: pathological_target(
                    setting, made, seed
                )
            for kind, make in kinds.items():
                errors = [
                    _error(setting, width, seed, make(setting, seed)) for seed in range(draws)
                ]
                successes = sum(error <= SUCCESS for error in errors)
                interval = stats.binomtest(successes, draws).proportion_ci(0.95)
                lines.append(
                    {
                        "kernels": setting.name,
                        "target": kind,
                        "n": setting.equations,
                        "minimum width": setting.minimum_width,
                        "c1": width,
                        "beyond the minimum": width - setting.minimum_width,
                        "rebuilt": successes,
                        "draws": draws,
                        "low": interval.low,
                        "high": interval.high,
                        "median error": float(torch.tensor(errors).median()),
                    }
                )
    return pd.DataFrame(lines)


def _error(setting: Setting, width: int, seed: int, target: torch.Tensor) -> float:
    return composed_error(
        kernel_composition_system(target, *features(setting, width, seed), torch.device("cpu"))
    )


def thresholds(frame: pd.DataFrame) -> pd.DataFrame:
    """One line a setting and kind of target: the smallest width from which every draw was rebuilt, beside the theorems'."""
    lines = []
    for (kernels, kind), group in frame.groupby(["kernels", "target"], sort=False):
        group = group.sort_values("c1")
        failing = group[group["rebuilt"] < group["draws"]]
        least = int(group["c1"].min()) if failing.empty else int(failing["c1"].max()) + 1
        n, minimum = int(group["n"].iloc[0]), int(group["minimum width"].iloc[0])
        below = group[group["c1"] < least]
        lines.append(
            {
                "kernels": kernels,
                "target": kind,
                "n": n,
                "n - c2 + 1 (Thm 2.2)": minimum,
                "every draw rebuilt from": f"{least}{' (n)' if least == n else ''}",
                "draws a width": int(group["draws"].iloc[0]),
                "rebuilt below": f"{int(below['rebuilt'].sum())} of {int(below['draws'].sum())}",
            }
        )
    return pd.DataFrame(lines)


def draw(frame: pd.DataFrame, file: io.BytesIO, kind: str) -> None:
    """The phase transition: share of draws rebuilt against features beyond the minimum width, with 95% intervals."""
    names = list(dict.fromkeys(frame["kernels"]))
    columns = 3
    with canvas(
        file,
        kind,
        -(-len(names) // columns),
        columns,
        figsize=(11, 5.6),
        sharey=True,
        squeeze=False,
    ) as (figure, grid):
        for axes in grid.flat[len(names) :]:
            axes.set_visible(False)
        for axes, name in zip(grid.flat, names, strict=False):
            part = frame[frame["kernels"] == name]
            for target, colour, marker in (
                ("random", "#4c72b0", "o"),
                ("pathological", "#c44e52", "s"),
            ):
                points = part[part["target"] == target].sort_values("c1")
                if points.empty:
                    continue
                share = points["rebuilt"] / points["draws"]
                spread = [
                    (share - points["low"]).clip(lower=0),
                    (points["high"] - share).clip(lower=0),
                ]
                axes.errorbar(
                    points["beyond the minimum"],
                    share,
                    spread,
                    marker=marker,
                    color=colour,
                    capsize=2,
                    label=target,
                )
            axes.axvline(0, color="grey", linewidth=1, linestyle=":")
            axes.axvline(
                part["n"].iloc[0] - part["minimum width"].iloc[0],
                color="grey",
                linewidth=1,
                linestyle="--",
            )
            axes.set_title(name, fontsize=9)
            axes.set_xlabel("c1 - (n - c2 + 1)")
        for row in grid:
            row[0].set_ylabel("share of draws rebuilt")
        grid[0][0].legend(fontsize=8)
        figure.suptitle("Dotted: minimum width (Thm 2.2); dashed: n (Thm 2.3)", fontsize=9)
