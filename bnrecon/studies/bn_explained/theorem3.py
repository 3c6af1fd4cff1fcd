"""Theorem 3: dihedral angles of folded hyperplanes, Eq. 24-26, and how sigma changes them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch

from bnrecon.reporting.figures import PAGE, PALETTE, Figure, new_figure
from bnrecon.reproduction.parts import Decisions, below, join, merge, part, sweep
from bnrecon.studies.bn_explained import small_networks as small

POINTS = 64  # per batch
FACTORS = tuple(10.0**power for power in np.linspace(-4, 4, 33))  # of sigma
SIZES = {  # inputs and units of layer 1
    "smoke": ((2, 4), (5, 6)),
    "laptop": ((2, 6), (3, 6), (10, 16), (64, 32)),
    "paper": ((2, 6), (3, 6), (10, 16), (64, 32)),
}
FOLDS = {"smoke": 5, "laptop": 50, "paper": 500}
LIMIT, SMALL, LARGE = 1e-4, 0.1, 1e4  # factors of sigma
RANDOM_UNITS = {"smoke": 50, "laptop": 1000, "paper": 1000}  # on the digits
EQUATIONS = ("24", "25", "26")
TOLERANCE = 1e-6
ALIGNED = 0.1  # rad: a smaller angle counts as none
ANGLES = {
    "angle to H, on": "eq24",
    "angle to H, off": "eq25",
    "of the facets": "repaired",
    "by Eq. 26": "eq26",
}


@dataclass(frozen=True)
class Fold:
    """Two facets of a layer-2 hyperplane that meet at a point of a hyperplane of layer 1."""

    network: small.SmallNetwork  # its first layer
    weight: np.ndarray  # w_2,k (K,)
    unit: int  # i, whose hyperplane the facets meet at
    point: np.ndarray  # where they meet (D,)


def _angle(one: np.ndarray, other: np.ndarray) -> float:
    """arccos(<a, b> / ||a|| ||b||), accurate if small; NaN for the zero vector of ReLUs all off."""
    if not (one.any() and other.any()):
        return float("nan")
    one, other = one / np.linalg.norm(one), other / np.linalg.norm(other)
    return float(2 * np.arctan2(np.linalg.norm(one - other), np.linalg.norm(one + other)))


def formula_angles(fold: Fold) -> dict[str, float]:
    """Eq. 24 to 26 from the weights and Q_1 (Eq. 23), and Eq. 26 repaired.

    The repaired form is pi - arccos(<n, n'> / ||n|| ||n'||), without the absolute value, where n
    and n' are the normals W_1' Q_1 w_2,k on both sides.
    """
    layer, unit = fold.network.layers[0], fold.unit
    active = layer.normalize(fold.point[None])[0] >= 0
    normals = []
    for side in (True, False):
        active[unit] = side
        scale = np.where(active, 1.0, fold.network.slope) / layer.deviation
        normals.append((fold.weight * scale) @ layer.weight)
    one, other = (
        min(angle, np.pi - angle)
        for angle in (_angle(normal, layer.weight[unit]) for normal in normals)
    )
    repaired = np.pi - (between := _angle(*normals))
    return {"eq24": one, "eq25": other, "eq26": min(between, repaired), "repaired": repaired}


def measured_angles(fold: Fold) -> dict[str, float]:
    """The same angles between half-hyperplanes, without Q_1.

    The tangent space of a facet is the null space of the network's gradient, by automatic
    differentiation just beside the point; the edge is its intersection with H_1,i; a facet's
    direction is its unit vector that is orthogonal to the edge and points away from it.
    """
    hyperplane = fold.network.layers[0].weight[fold.unit]
    step = 1e-6 * hyperplane / np.linalg.norm(hyperplane)
    directions = []
    for side in (1.0, -1.0):
        gradient = _gradient(fold, fold.point + side * step)
        facet = _null_space(gradient[None])
        edge = _null_space(np.stack([gradient, hyperplane]))
        rest = facet - edge @ (edge.T @ facet)  # of rank one
        direction = np.linalg.svd(rest)[0][:, 0]
        directions.append(direction * side * np.sign(direction @ hyperplane))
    across = _null_space(np.concatenate([hyperplane[None], edge.T]))[:, 0]
    one, other = (
        float(np.arctan2(abs(direction @ step), abs(direction @ across) * np.linalg.norm(step)))
        for direction in directions
    )
    return {"measured24": one, "measured25": other, "measured26": _angle(*directions)}


def _null_space(rows: np.ndarray) -> np.ndarray:
    """An orthonormal basis (D, D - rows) of the orthogonal complement of independent rows."""
    return np.linalg.svd(rows)[2][len(rows) :].T


def _gradient(fold: Fold, point: np.ndarray) -> np.ndarray:
    """The gradient of <w, z(x)> at a point, by PyTorch."""
    x = torch.tensor(point, requires_grad=True)
    layer = fold.network.layers[0]
    moments = torch.from_numpy(layer.mean), torch.from_numpy(layer.deviation**2)
    outputs = (torch.from_numpy(layer.weight) @ x)[None]
    tiny = np.finfo(float).tiny  # 0, but some versions of PyTorch refuse 0
    outputs = torch.nn.functional.batch_norm(outputs, *moments, eps=float(tiny))
    features = torch.nn.functional.leaky_relu(outputs, fold.network.slope)
    (gradient,) = torch.autograd.grad((features[0] * torch.from_numpy(fold.weight)).sum(), x)
    return gradient.numpy()


def draw_fold(inputs: int, units: int, slope: float, generator: np.random.Generator) -> Fold:
    """Draw a random first layer with batch statistics, its unit i and a random w_2,k.

    The facets meet at a random point of H_1,i: mu_2,k is the output there and does not affect the
    angles.
    """
    points = generator.normal(size=(POINTS, inputs))
    network = small.draw_network(points, (units,), slope, generator)
    unit, layer = int(generator.integers(units)), network.layers[0]
    normal, point = layer.weight[unit], generator.normal(size=inputs)
    point = point - (point @ normal - layer.mean[unit]) / (normal @ normal) * normal
    return Fold(network, generator.normal(size=units), unit, point)


def measure_folds(activation: str, inputs: int, units: int, folds: int) -> pd.DataFrame:
    """One row per random fold: angles in radians, by formula and measured."""
    rows = []
    for seed in range(folds):
        generator = np.random.Generator(np.random.Philox(seed))
        fold = draw_fold(inputs, units, small.SLOPES[activation], generator)
        row = {"kind": "random", "activation": activation, "inputs": inputs, "units": units}
        rows.append(row | {"seed": seed} | formula_angles(fold) | measured_angles(fold))
    return pd.DataFrame(rows)


def vary_sigma(activation: str, seeds: int) -> pd.DataFrame:
    """One row per fold and factor that multiplies only its unit's sigma_1,i.

    The weights and the other sigma stay. By Eq. 24, the angles depend on w_1,j / sigma_1,j up to a
    common factor: what counts is sigma_1,i / ||w_1,i|| relative to that of the other units.
    """
    rows = []
    for seed in range(seeds):
        generator = np.random.Generator(np.random.Philox(seed))
        fold = draw_fold(3, 6, small.SLOPES[activation], generator)
        layer = fold.network.layers[0]
        for factor in FACTORS:
            deviation = layer.deviation.copy()
            deviation[fold.unit] *= factor
            scaled = small.Layer(layer.weight, layer.mean, deviation)
            network = small.SmallNetwork((scaled,), fold.network.slope)
            angles = formula_angles(Fold(network, fold.weight, fold.unit, fold.point))
            row = {"kind": "sweep", "activation": activation, "inputs": 3, "units": 6}
            rows.append(row | {"seed": seed, "factor": factor} | angles)
    return pd.DataFrame(rows)


def measure_spread(units: int) -> pd.DataFrame:
    """One row: sigma / ||w|| of random units on the digits, extremes over the median."""
    images = small.digit_vectors()
    generator = np.random.Generator(np.random.Philox(0))
    weight = generator.normal(size=(units, images.shape[1]))
    spread = (images @ weight.T).std(0) / np.linalg.norm(weight, axis=1)
    spread /= np.median(spread)
    row = {"kind": "spread", "activation": "any", "inputs": images.shape[1], "units": units}
    return pd.DataFrame([row | {"smallest": spread.min(), "largest": spread.max()}])


def _errors(rows: pd.DataFrame) -> dict[str, float]:
    """Largest differences to the measured angles, by equation."""
    errors = {
        f"eq{number}": float((rows[f"eq{number}"] - rows[f"measured{number}"]).abs().max())
        for number in EQUATIONS
    }
    return errors | {"repaired": float((rows["repaired"] - rows["measured26"]).abs().max())}


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per activation and size."""
    lines = []
    random = rows[rows["kind"] == "random"]
    grouped = random.groupby(["activation", "inputs", "units"], sort=False)
    for (activation, inputs, units), group in grouped:
        errors = _errors(group)
        wrong = (group["eq26"] - group["measured26"]).abs() > TOLERANCE
        line = {"activation": activation, "inputs D": f"{inputs:.0f}", "units": str(units)}
        line |= {"folds": str(len(group)), "error of Eq. 24": f"{errors['eq24']:.0e}"}
        line |= {"of Eq. 25": f"{errors['eq25']:.0e}", "of Eq. 26": f"{errors['eq26']:.2f}"}
        line |= {"Eq. 26 wrong": str(wrong.sum())}
        lines.append(line | {"of Eq. 26 repaired": f"{errors['repaired']:.0e}"})
    for activation in dict.fromkeys(rows.loc[rows["kind"] == "sweep", "activation"]):
        for factor in (LIMIT, SMALL, 1, LARGE):
            middle = _at(rows, activation, factor)[[*ANGLES.values()]].median()
            line = {"activation": f"{activation}, σ times {factor:g}"}
            lines.append(line | {title: f"{middle[name]:.3f}" for title, name in ANGLES.items()})
    for row in rows[rows["kind"] == "spread"].itertuples():
        name = f"σ/‖w‖ on digits: {row.smallest:.2f} to {row.largest:.2f} of its median"
        line = {"activation": name, "inputs D": f"{row.inputs:.0f}"}
        lines.append(line | {"units": f"{row.units:.0f}"})
    return pd.DataFrame(lines).fillna("")


def draw(rows: pd.DataFrame) -> Figure:
    """Draw Eq. 26 against measurement, and angles against sigma."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 3.0), width_ratios=(1, 1.25))
    random, swept = rows[rows["kind"] == "random"], rows[rows["kind"] == "sweep"]
    if not random.empty:
        measured = random["measured26"]
        left.plot(measured, random["eq26"], ".", color=PALETTE[3], label="Eq. 26 in print")
        left.plot(measured, random["repaired"], ".", color=PALETTE[0], label="repaired")
        left.legend()
    left.set(xlabel="measured angle of the facets, rad", ylabel="by formula, rad", aspect="equal")
    groups = swept.groupby("activation", sort=False)
    for (activation, group), colour in zip(groups, PALETTE, strict=False):
        middle = group.groupby("factor")[["eq24", "eq25"]].median()
        right.semilogx(middle.index, middle["eq24"], color=colour, label=str(activation))
        right.semilogx(middle.index, middle["eq25"], "--", color=colour)
    right.set(xlabel="factor of one unit's σ", ylabel="angle to the unit's hyperplane, rad")
    if not swept.empty:
        right.plot([], [], color="grey", label="unit on")
        right.plot([], [], "--", color="grey", label="unit off")
        right.legend()
    return figure


def _at(rows: pd.DataFrame, activation: str, factor: float) -> pd.DataFrame:
    """The sweep's rows of an activation at a factor."""
    swept = rows[(rows["kind"] == "sweep") & (rows["activation"] == activation)]
    return swept[np.isclose(swept["factor"], factor, rtol=1e-6)]


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide Eq. 24-26, and what the text says about small and large sigma."""
    random, swept = rows[rows["kind"] == "random"], rows[rows["kind"] == "sweep"]
    decisions: list[Decisions] = [({}, {"limit": LIMIT, "small": SMALL, "large": LARGE})]
    if not random.empty:
        decisions.append(_decide_formulas(random))
    if set(swept["activation"]) == set(small.SLOPES):
        decisions += [_decide_limits(rows), _decide_leaky(rows)]
    return merge(*decisions)


def _decide_formulas(random: pd.DataFrame) -> Decisions:
    errors = _errors(random)
    facets = max(errors["eq24"], errors["eq25"])
    wrong = int(((random["eq26"] - random["measured26"]).abs() > TOLERANCE).sum())
    numbers = {"facets": facets, "folds": len(random), "wrong": wrong}
    return {
        "Theorem 3, Eq. 24, 25": facets < TOLERANCE,
        "Theorem 3, Eq. 26": "needs a correction" if wrong else True,
    }, numbers | {"repaired": errors["repaired"]}


def _decide_limits(rows: pd.DataFrame) -> Decisions:
    """Decide absolute value and ReLU at small sigma, and all activations at large sigma."""
    both = float(_at(rows, "absolute value", LIMIT)[["eq24", "eq25"]].max().max())
    on = float(_at(rows, "ReLU", LIMIT)["eq24"].max())
    swept = rows[(rows["kind"] == "sweep") & (rows["activation"] == "ReLU")]
    off = swept.dropna(subset=["eq25"]).groupby("seed")["eq25"].agg(["min", "max"])
    change = float((off["max"] - off["min"]).max())
    flat = pd.concat([_at(rows, activation, LARGE) for activation in small.SLOPES])
    least = float(flat["repaired"].min())
    return {
        "absolute value": both < ALIGNED,
        "ReLU": on < ALIGNED and change < TOLERANCE,
        "large": least > np.pi - ALIGNED,
    }, {"both": both, "relu_on": on, "change": change, "least": least}


def _decide_leaky(rows: pd.DataFrame) -> Decisions:
    """Decide leaky ReLU at a moderately small sigma and in the limit."""
    rows_at = (_at(rows, "leaky ReLU", factor) for factor in (1, SMALL, LIMIT))
    before, moderate, limit = (some[["eq24", "eq25"]] for some in rows_at)
    (on, off), whole = moderate.median(), before["eq25"].median()
    aligned = limit["eq25"].max()
    printed = bool(on < whole / 2 < off)
    return {"leaky ReLU": "needs a condition" if printed and aligned < ALIGNED else printed}, {
        "leaky": {"on": on, "off": off, "limit": aligned},
    }


VARIED = {"activation": tuple(small.SLOPES)}
TASKS = join(
    sweep(  # the theorem is for leaky ReLU and absolute value
        measure_folds,
        "{activation}, D = {inputs}, K = {units}",
        {"activation": ("leaky ReLU", "absolute value"), ("inputs", "units"): SIZES},
        {"folds": FOLDS},
    ),
    sweep(vary_sigma, "sweep of sigma, {activation}", VARIED, {"seeds": FOLDS}),
    sweep(measure_spread, "sigma on the digits", {}, {"units": RANDOM_UNITS}),
)
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=below)
