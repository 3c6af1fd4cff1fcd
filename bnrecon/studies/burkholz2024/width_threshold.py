"""How many features a target layer needs (Burkholz 2024, Lemma 2.1, Theorems 2.2 and 2.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from bnrecon.construction.kernel_composition import embed, kernel_composition_system
from bnrecon.operators.eliminated import Eliminated
from bnrecon.operators.system import System
from bnrecon.studies.burkholz2024.draws import count_rebuilt

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

    Fewer features are the first of more, up to n + 2.
    """
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
    """A target that ``width`` features do not reach, though n - c2 + 1 <= c1 < n.

    It is made from the features. The scales that keep every output's weights in proportion to the
    target's are a space of d = c1 + c2 - n < c2 dimensions. Take each of the first d outputs'
    weights to be what some scales reach while all other outputs, and the output's own entries
    outside the target's kernel, stay zero. Those scales fill the space, and the other outputs,
    whatever their weights, are zero for all of it. Such scales exist from c1 = n - c0 |k_t| + 1
    features on.

    Raises:
        ValueError: the setting has none of this kind for ``width`` features.
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
        scales = torch.linalg.svd(zero).Vh[-1]  # in the null space of what has to stay zero
        alone = (table[output][inside] @ scales).reshape(
            setting.target_side, setting.target_side, setting.inputs
        )
        target[output] = alone.permute(2, 0, 1) / alone.norm() * target[output].norm()
    return target


def composed_error(system: System) -> float:
    """Solve a small system by singular values; return ‖outer ∘ M inner - W‖ / ‖W‖.

    The error is over the whole composed kernel. Below n features the second scales
    are eliminated whatever the width, as in Lemma 2.1, so that they are free.
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


def success_rates(setting: Setting, draws: int, below: int = 3) -> pd.DataFrame:
    """The share of draws that are rebuilt, for random and for pathological targets.

    One row per width, from n - c2 + 1 - ``below`` to n + 1, and kind of target; ``low`` and
    ``high`` are the exact 95% interval of the share (Clopper and Pearson).
    """
    widths = range(setting.minimum_width - below, setting.equations + 2)
    lines = []
    for width in widths:
        lines.append(_rate(setting, width, "random", draws))
        if setting.has_pathological(min(width, setting.equations - 1)):
            lines.append(_rate(setting, width, "pathological", draws))
    return pd.DataFrame(lines)


def _rate(setting: Setting, width: int, kind: str, draws: int) -> dict[str, Any]:
    errors = [_error(setting, width, kind, seed) for seed in range(draws)]
    return {
        "kernels": setting.name,
        "target": kind,
        "n": setting.equations,
        "minimum_width": setting.minimum_width,
        "c1": width,
        "beyond_minimum": width - setting.minimum_width,
        **count_rebuilt(errors, SUCCESS),
    }


def _error(setting: Setting, width: int, kind: str, seed: int) -> float:
    """The error of one draw; from n features on, a pathological target is one made for n - 1."""
    if kind == "random":
        target = random_target(setting, seed)
    else:
        target = pathological_target(setting, min(width, setting.equations - 1), seed)
    drawn = features(setting, width, seed)
    return composed_error(kernel_composition_system(target, *drawn, torch.device("cpu")))
