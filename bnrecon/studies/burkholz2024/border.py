"""A nonlinear first layer and where zeros are padded (Burkholz 2024, Theorem 2.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F

from bnrecon.construction.activation import FIRST_ACTIVATIONS, linear_region
from bnrecon.features.drawing import draw
from bnrecon.features.pair import Features
from bnrecon.features.shapes import LayerShape
from bnrecon.operators.system import Scales
from bnrecon.reproduction.intervals import geometric_mean
from bnrecon.reproduction.parts import Decisions, only, part, sweep, table

SHAPE = LayerShape(4, 4, (3, 3))
SIDE, IMAGES = 12, 8
EPSILON = 1e-2  # for tanh and sigmoid
SEEDS = {"smoke": range(2), "laptop": range(5), "paper": range(20)}
ACTIVATIONS = [name for name in FIRST_ACTIVATIONS if name != "identity"]
BEFORE = "zeros, before the first layer"
BETWEEN = "zeros, between the layers"
REPAIRED = "φ(b), between the layers"
EXACT = ("relu", "leaky_relu")  # no error for any ε
PLACES = {"inside": "inside", "at the border": "border"}
NO_ERROR = 1e-9  # relative to the largest output, in float64


def errors(seed: int) -> pd.DataFrame:
    """Largest errors of a rebuilt random layer, inside its images and at their border.

    n he_normal features, 1x1 and 3x3 kernels, and inputs in [-1, 1], all in float64. One row per
    activation and padding, with the target's largest output.
    """
    features, gamma, images, expected = _build(seed)
    rows = []
    for activation in ACTIVATIONS:
        for padding in (BEFORE, BETWEEN, REPAIRED):
            off = (_source(features, gamma, images, activation, padding) - expected).abs()
            inside = off[..., 1:-1, 1:-1].max()
            border = off.clone()
            border[..., 1:-1, 1:-1] = 0
            row = {"seed": seed, "activation": activation, "padding": padding}
            sizes = {"inside": inside, "border": border.max(), "output": expected.abs().max()}
            rows.append(row | {name: float(size) for name, size in sizes.items()})
    return pd.DataFrame(rows)


def _build(seed: int) -> tuple[Features, torch.Tensor, torch.Tensor, torch.Tensor]:
    """A pair whose composition is the target, its γ, inputs, and the target's outputs."""
    generator = torch.Generator().manual_seed(seed)
    size = (SHAPE.outputs, SHAPE.inputs, *SHAPE.kernel)
    target = torch.randn(size, generator=generator, dtype=torch.float64)
    size = (IMAGES, SHAPE.inputs, SIDE, SIDE)
    images = torch.rand(size, generator=generator, dtype=torch.float64) * 2 - 1
    features = draw("he_normal", SHAPE, SHAPE.equations, seed, 0)
    first, second = (weight.double() for weight in features.weights())
    columns = torch.einsum("ilrs,lj->ijrsl", second, first).reshape(SHAPE.equations, -1)
    gamma = torch.linalg.solve(columns, target.flatten())
    return features, gamma, images, F.conv2d(images, target, padding="same")


def _source(
    features: Features, gamma: torch.Tensor, images: torch.Tensor, name: str, padding: str
) -> torch.Tensor:
    """S(x) with an activation φ(v h + b) after the first layer h = γ1 A x."""
    first, second = (weight.double() for weight in features.weights())
    scales = Scales(gamma, torch.ones(SHAPE.outputs, dtype=torch.float64))
    bound = torch.ones(SHAPE.inputs, dtype=torch.float64)
    region = linear_region(name, features, scales, bound, EPSILON)
    activation = FIRST_ACTIVATIONS[name]
    phi, shift = activation.module(), region.shift[:, None, None]
    images = F.pad(images, (1, 1, 1, 1)) if padding == BEFORE else images
    hidden = F.conv2d(images, gamma[:, None, None, None] * first[:, :, None, None])
    values = phi(region.factor * hidden + shift)
    if padding == BETWEEN:
        values = F.pad(values, (1, 1, 1, 1))
    elif padding == REPAIRED:
        outside = phi(shift).expand(len(values), -1, SIDE + 2, SIDE + 2).clone()
        outside[..., 1:-1, 1:-1] = values
        values = outside
    constant = activation.slope * region.shift + activation.offset
    removed = torch.einsum("ilrs,l->i", second, constant)[:, None, None]
    return (F.conv2d(values, second) - removed) / (activation.slope * region.factor)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per activation and padding."""

    def relative(column: str) -> Callable[[pd.DataFrame], str]:
        return lambda group: f"{geometric_mean(group[column] / group['output'], floor=1e-16):.1e}"

    columns: dict[str, Any] = {"activation": "activation", "padded with": "padding", "draws": len}
    columns |= {f"largest error, {name}": relative(of) for name, of in PLACES.items()}
    return table(rows, ["activation", "padding"], False, **columns)


def decide(rows: pd.DataFrame) -> Decisions:
    """Does the theorem's source match the target in whole images, padded as one may read it?"""
    bound = (NO_ERROR * rows["output"]).where(rows["activation"].isin(EXACT), EPSILON)
    within = (rows[["inside", "border"]].max(axis=1) <= bound).groupby(rows["padding"]).all()
    relative = rows["border"] / rows["output"]
    between = relative[(rows["activation"] != "tanh") & (rows["padding"] == BETWEEN)]
    return {"Theorem 2.4, at the border": bool(within[BEFORE])}, {
        "others": relative[rows["padding"] != BETWEEN].max(),
        "draws": rows["seed"].nunique(),
        "least": between.min(),
        "most": between.max(),
    }


TASKS = sweep(errors, "seed {seed}", {"seed": SEEDS})
EXCERPT = only("padded with", BEFORE, BETWEEN)
BY, BORDER = ["activation", "padded with"], "largest error, at the border"
PART = part(
    __file__,
    TASKS,
    summarize,
    decide=decide,
    excerpt=lambda table: EXCERPT(table).set_index(BY)[BORDER].unstack().reset_index(),
)
