"""The width at which targets become reachable (Burkholz 2024, Lemma 2.1, Theorems 2.2, 2.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from bnrecon.construction.kernel_composition import embed, kernel_composition_system
from bnrecon.operators.eliminated import Eliminated
from bnrecon.operators.system import System
from bnrecon.reporting.figures import PAGE, PALETTE, Axes, Figure, draw_legend, new_figure
from bnrecon.reporting.statistics import proportion_interval
from bnrecon.reproduction.parts import Decisions, only, part, sweep

# Relative error up to which a draw counts as rebuilt; in float64 condition numbers reach 1e6.
SUCCESS = 1e-6


@dataclass(frozen=True)
class Setting:
    """Channels c2, c0, and the sides of the kernels of target, second and first source layer."""

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
        """The equations, n = c2 c0 |dim(k2, k1)|."""
        return self.outputs * self.inputs * self.side**2

    @property
    def minimum_width(self) -> int:
        """The width n - c2 + 1."""
        return self.equations - self.outputs + 1

    def has_pathological(self, width: int) -> bool:
        """Whether ``pathological_target`` makes one: max(n - c2, n - c0 |k_t|) < c1 < n."""
        alone = self.equations - self.inputs * self.target_side**2
        return max(self.minimum_width, alone + 1) <= width < self.equations

    @property
    def name(self) -> str:
        """The name in tables: the kernels, and Δk = dim(k2, k1) - k_t."""
        kernels = f"k_t={self.target_side}, k_2={self.second_side}, k_1={self.first_side}"
        return f"{kernels} (Δk={self.side - self.target_side})"


SETTINGS = (
    Setting(4, 3, 1, 1, 1),
    Setting(4, 3, 3, 3, 1),
    Setting(4, 3, 5, 5, 1),
    Setting(4, 3, 5, 3, 3),
    Setting(4, 3, 1, 1, 3),
    Setting(4, 3, 3, 3, 3),
)


def features(setting: Setting, width: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Normal A (c1, c0, k1, k1) and B (c2, c1, k2, k2) in float64.

    Fewer features are the first of a larger draw, up to n + 2.
    """
    generator = torch.Generator().manual_seed(seed)
    most, one, two = setting.equations + 2, setting.first_side, setting.second_side
    first = torch.randn(most, setting.inputs, one, one, dtype=torch.float64, generator=generator)
    second = torch.randn(most, setting.outputs, two, two, dtype=torch.float64, generator=generator)
    return first[:width], second[:width].transpose(0, 1)


def random_target(setting: Setting, seed: int) -> torch.Tensor:
    """A normal target (c2, c0, k_t, k_t), drawn independently of the features."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    size = (setting.outputs, setting.inputs, setting.target_side, setting.target_side)
    return torch.randn(size, dtype=torch.float64, generator=generator)


def pathological_target(setting: Setting, width: int, seed: int) -> torch.Tensor:
    """A target that ``width`` features do not reach, though n - c2 + 1 <= c1 < n.

    It is made from the features. The scales that keep every output's weights proportional to the
    target's form a space of d = c1 + c2 - n < c2 dimensions. Let each of the first d outputs'
    weights be what some scales reach while all other outputs, and this output's entries outside the
    target's kernel, stay zero. Those scales span the space, and the other outputs, whatever their
    weights, are zero on all of it. Such scales exist from c1 = n - c0 |k_t| + 1 features on, where
    the setting ``has_pathological``.
    """
    target = random_target(setting, seed)
    system = kernel_composition_system(target, *features(setting, width, seed), torch.device("cpu"))
    table, side = system.matrix.dense().reshape(setting.outputs, -1, width), setting.target_side
    kernel = embed(torch.ones(1, setting.inputs, side, side), (setting.side, setting.side))
    inside = kernel.permute(0, 2, 3, 1).reshape(-1) > 0
    for output in range(width + setting.outputs - setting.equations):
        others = table[:output].flatten(0, 1), table[output + 1 :].flatten(0, 1)
        zero = torch.cat([others[0], table[output][~inside], others[1]])
        scales = torch.linalg.svd(zero).Vh[-1]  # in the null space of what has to stay zero
        alone = (table[output][inside] @ scales).reshape(side, side, setting.inputs)
        target[output] = alone.permute(2, 0, 1) / alone.norm() * target[output].norm()
    return target


def composed_error(system: System) -> float:
    """Solve a small system by singular values; return ‖outer ∘ M inner - W‖ / ‖W‖.

    The error is over the whole composed kernel. Below n features, the second scales are eliminated
    at any width, as in Lemma 2.1, so they are free.
    """
    n, width = system.matrix.shape
    outer = torch.ones(len(system.weight), dtype=torch.float64)
    if width < n:
        operator = Eliminated(system.matrix, system.weight)
        inner = _least_squares(operator.dense(), operator.right_hand_side())
        outer = operator.second_scales(system.matrix.matvec(inner))
    else:
        inner = _least_squares(system.operator.dense(), system.rhs)
    composed = system.matrix.matvec(inner).reshape(system.weight.shape) * outer[:, None]
    return float((composed - system.weight).norm() / system.weight.norm())


def _least_squares(matrix: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    """The solution of least norm, by singular values."""
    return torch.linalg.lstsq(matrix, rhs[:, None], driver="gelsd").solution[:, 0]


def count_rebuilt(errors: Sequence[float], limit: float) -> dict[str, float]:
    """Count errors within the limit; ``low`` and ``high`` are the share's 95% interval.

    >>> counts = count_rebuilt([0.1, 0.2, 3.0], 1.0)
    >>> counts["rebuilt"], counts["draws"], round(counts["low"], 3)
    (2, 3, 0.094)
    """
    rebuilt, draws = sum(error <= limit for error in errors), len(errors)
    low, high = proportion_interval(rebuilt, draws)
    return {"rebuilt": rebuilt, "draws": draws, "low": low, "high": high}


def draw_shares(axes: Axes, positions: pd.Series, rows: pd.DataFrame, **style: Any) -> None:
    """Draw shares of draws with their intervals, at positions on the axis."""
    share = rows["rebuilt"] / rows["draws"]
    ends = [(share - rows["low"]).clip(lower=0), (rows["high"] - share).clip(lower=0)]
    axes.errorbar(positions, share, ends, capsize=2, **style)


def rates(setting: Mapping[str, int], draws: int, below: int = 3) -> pd.DataFrame:
    """The share of rebuilt draws, for random and for pathological targets.

    One row per width, from n - c2 + 1 - ``below`` to n + 1, and type of target; ``low`` and
    ``high`` are the exact 95% interval of the share (Clopper and Pearson). ``setting`` has the
    fields of ``Setting``.
    """
    layer, lines = Setting(**setting), []
    for width in range(layer.minimum_width - below, layer.equations + 2):
        row = {"n": layer.equations, "minimum_width": layer.minimum_width, "c1": width}
        row["beyond_minimum"] = width - layer.minimum_width
        made = layer.has_pathological(min(width, layer.equations - 1))
        for kind in ("random", "pathological") if made else ("random",):
            errors = [_error(layer, width, kind, seed) for seed in range(draws)]
            named = {"kernels": layer.name, "target": kind}
            lines.append(named | row | count_rebuilt(errors, SUCCESS))
    return pd.DataFrame(lines)


def _error(setting: Setting, width: int, kind: str, seed: int) -> float:
    """The error of one draw; from n features on, a pathological target is that for n - 1."""
    if kind == "random":
        target = random_target(setting, seed)
    else:
        target = pathological_target(setting, min(width, setting.equations - 1), seed)
    drawn = features(setting, width, seed)
    return composed_error(kernel_composition_system(target, *drawn, torch.device("cpu")))


DRAWS = {"smoke": 3, "laptop": 50, "paper": 200}
TARGETS = {"random": (PALETTE[0], "o"), "pathological": (PALETTE[3], "s")}


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per setting and type of target: the width from which every draw was rebuilt."""
    lines = []
    for (kernels, kind), group in rows.groupby(["kernels", "target"], sort=False):
        failing = group[group["rebuilt"] < group["draws"]]
        least = int(group["c1"].min()) if failing.empty else int(failing["c1"].max()) + 1
        n, minimum = int(group["n"].iloc[0]), int(group["minimum_width"].iloc[0])
        line = {"kernels": kernels, "target": kind, "n": n, "n - c2 + 1 (Theorem 2.2)": minimum}
        line["every draw rebuilt from c1 ="] = f"{least}{' (n)' if least == n else ''}"
        line["draws per width"] = int(group["draws"].iloc[0])
        below = group[group["c1"] < least][["rebuilt", "draws"]].sum().astype(int)
        lines.append(line | {"rebuilt below": f"{below['rebuilt']} of {below['draws']}"})
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the share of rebuilt draws against features beyond the minimum width, with intervals."""
    names = list(dict.fromkeys(rows["kernels"]))
    figure, grid = new_figure(-(-len(names) // 3), 3, (PAGE, 4.0), sharey=True, squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for letter, axes, name in zip("abcdefghi", grid.flat, names, strict=False):
        of_kernels = rows[rows["kernels"] == name]
        for target, (colour, marker) in TARGETS.items():
            points = of_kernels[of_kernels["target"] == target].sort_values("c1")
            style = {"marker": marker, "color": colour, "label": target}
            draw_shares(axes, points["beyond_minimum"], points, **style)
        first = of_kernels.iloc[0]
        axes.axvline(0, color="grey", linewidth=1, linestyle=":")
        axes.axvline(first["n"] - first["minimum_width"], color="grey", linewidth=1, linestyle="--")
        axes.set(title=f"({letter}) {name}", xlabel=f"c1 - (n - c2 + 1), n = {first['n']}")
    for row in grid:
        row[0].set_ylabel("share of draws rebuilt")
    draw_legend(figure, 2, "lower")
    draws = " or ".join(map(str, sorted(set(rows["draws"]))))
    figure.suptitle(
        f"{draws} draws a point, 95% intervals; dotted: minimum width (Theorem 2.2); dashed: n "
        "(Theorem 2.3)",
        fontsize=8,
    )
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide both theorems: what is rebuilt from their widths on, and what below."""
    is_random, reached = rows["target"] == "random", rows["c1"] >= rows["minimum_width"]
    enough = rows["c1"] >= rows["n"]
    parts = {"wide": is_random & reached, "narrow": is_random & ~reached}
    parts |= {"enough": enough, "made": ~is_random & ~enough}
    numbers: dict[str, Any] = {"settings": rows["kernels"].nunique()}
    numbers["draws"] = int(rows.drop_duplicates("kernels")["draws"].sum())  # widths share them
    for name, chosen in parts.items():
        rebuilt, draws = rows.loc[chosen, ["rebuilt", "draws"]].sum().astype(int)
        numbers[name] = f"{rebuilt:,} of {draws:,}"
    all_rebuilt = rows["rebuilt"] == rows["draws"]
    verdicts = {
        "Theorem 2.2": bool(all_rebuilt[is_random & reached].all()),
        "Theorem 2.3": bool(all_rebuilt[enough].all()),
    }
    return verdicts, numbers


NAMED = [(dataclasses.asdict(setting), setting.name) for setting in SETTINGS]
TASKS = sweep(rates, "{_name}", {("setting", "_name"): NAMED}, {"draws": DRAWS})
EXCERPT = only("kernels", SETTINGS[1].name, SETTINGS[5].name, drop=["draws per width"])
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=EXCERPT)
