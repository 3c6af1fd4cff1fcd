"""Theorem 3: dihedral angles of folded hyperplanes, Eq. 24-26, and how sigma changes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.bn_explained.dihedral import Fold, formula_angles, measured_angles
from bnrecon.studies.bn_explained.small_networks import SLOPES, Layer, SmallNetwork, draw_network

__all__ = ["PART", "draw_fold", "measure_folds", "sweep"]

SIZES = {  # inputs and units of layer 1
    "smoke": ((2, 4), (5, 6)),
    "laptop": ((2, 6), (3, 6), (10, 16), (64, 32)),
    "paper": ((2, 6), (3, 6), (10, 16), (64, 32)),
}
FOLDS = {"smoke": 5, "laptop": 50, "paper": 500}
POINTS = 64  # of a batch
FACTORS = tuple(10.0**power for power in np.linspace(-4, 4, 33))  # of sigma
SMALL, LARGE = 1e-4, 1e4
EQUATIONS = ("24", "25", "26")
TOLERANCE = 1e-6
ANGLES = {
    "angle to H, on": "eq24",
    "angle to H, off": "eq25",
    "of the facets": "repaired",
    "by Eq. 26": "eq26",
}


def draw_fold(inputs: int, units: int, slope: float, generator: np.random.Generator) -> Fold:
    """A random first layer with batch statistics, a unit i of it and a random w_2,k.

    The facets meet at a random point of H_1,i: mu_2,k is the output there, and does not enter
    the angles.
    """
    points = generator.normal(size=(POINTS, inputs))
    network = draw_network(points, (units,), slope, generator)
    unit, layer = int(generator.integers(units)), network.layers[0]
    normal, point = layer.weight[unit], generator.normal(size=inputs)
    point = point - (point @ normal - layer.mean[unit]) / (normal @ normal) * normal
    return Fold(network, generator.normal(size=units), unit, point)


def _compare(fold: Fold) -> dict[str, float]:
    return formula_angles(fold) | measured_angles(fold)


def measure_folds(activation: str, inputs: int, units: int, folds: int) -> pd.DataFrame:
    """One row per random fold: angles in radians, by formula and measured."""
    rows = []
    for seed in range(folds):
        generator = np.random.Generator(np.random.Philox(seed))
        fold = draw_fold(inputs, units, SLOPES[activation], generator)
        row = {"kind": "random", "activation": activation, "inputs": inputs, "units": units}
        rows.append(row | {"seed": seed} | _compare(fold))
    return pd.DataFrame(rows)


def sweep(activation: str, seeds: int) -> pd.DataFrame:
    """One row per fold and factor that sigma_1,i of its unit is multiplied by."""
    rows = []
    for seed in range(seeds):
        generator = np.random.Generator(np.random.Philox(seed))
        fold = draw_fold(3, 6, SLOPES[activation], generator)
        layer = fold.network.layers[0]
        for factor in FACTORS:
            deviation = layer.deviation.copy()
            deviation[fold.unit] *= factor
            scaled = Layer(layer.weight, layer.mean, deviation)
            network = SmallNetwork((scaled,), fold.network.slope)
            found = formula_angles(Fold(network, fold.weight, fold.unit, fold.point))
            row = {"kind": "sweep", "activation": activation, "inputs": 3, "units": 6}
            rows.append(row | {"seed": seed, "factor": factor} | found)
    return pd.DataFrame(rows)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """Random folds for each size, and sweeps of sigma; ReLU, which may have no second facet, last.

    The theorem is for leaky ReLU and absolute value.
    """
    random = [
        Task(
            f"{activation}, D = {inputs}, K = {units}",
            measure_folds,
            {"activation": activation, "inputs": inputs, "units": units, "folds": FOLDS[scale]},
        )
        for activation in ("leaky ReLU", "absolute value")
        for inputs, units in SIZES[scale]
    ]
    sweeps = [
        Task(
            f"sweep of sigma, {activation}",
            sweep,
            {"activation": activation, "seeds": FOLDS[scale]},
        )
        for activation in SLOPES
    ]
    return random + sweeps


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
        lines.append(
            {
                "activation": activation,
                "inputs D": str(inputs),
                "units": str(units),
                "folds": str(len(group)),
                "error of Eq. 24": f"{errors['eq24']:.0e}",
                "of Eq. 25": f"{errors['eq25']:.0e}",
                "of Eq. 26": f"{errors['eq26']:.2f}",
                "Eq. 26 wrong": str(wrong.sum()),
                "of Eq. 26 repaired": f"{errors['repaired']:.0e}",
            }
        )
    for activation in dict.fromkeys(rows.loc[rows["kind"] == "sweep", "activation"]):
        for factor in (SMALL, LARGE):
            middle = _at(rows, activation, factor)[[*ANGLES.values()]].median()
            line = {"activation": f"{activation}, σ times {factor:g}"}
            lines.append(line | {title: f"{middle[name]:.3f}" for title, name in ANGLES.items()})
    return pd.DataFrame(lines).fillna("")


CAPTION = (
    "Largest differences to measured angles, in radians. Measured: between half-hyperplanes, from "
    "null spaces of the network's gradient on both sides of the fold. Repaired, Eq. 26 is "
    "π - arccos(⟨n, n'⟩ / ‖n‖‖n'‖) without the absolute value; in print it gives this angle's "
    "supplement where the facets are folded by less than a right angle. Last rows: median angles "
    "when one σ is multiplied, by formula, of the facets where the unit is on and off. Figure: "
    "left, Eq. 26 "
    "against measured angles; right, the median angles when one σ is multiplied by a factor: of "
    "the facet where the unit is on (solid) and off (dashed) to the unit's hyperplane."
)


def draw(rows: pd.DataFrame) -> Figure:
    """Eq. 26 against measurement, and angles against sigma."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.8))
    random, swept = rows[rows["kind"] == "random"], rows[rows["kind"] == "sweep"]
    if not random.empty:
        measured = random["measured26"]
        left.plot(measured, random["eq26"], ".", color=PALETTE[3], label="Eq. 26 in print")
        left.plot(measured, random["repaired"], ".", color=PALETTE[0], label="repaired")
        left.legend()
    left.set_xlabel("measured angle of the facets")
    left.set_ylabel("by formula")
    for (activation, group), colour in zip(
        swept.groupby("activation", sort=False), PALETTE, strict=False
    ):
        middle = group.groupby("factor")[["eq24", "eq25"]].median()
        right.semilogx(middle.index, middle["eq24"], color=colour, label=str(activation))
        right.semilogx(middle.index, middle["eq25"], "--", color=colour)
    right.set_xlabel("factor of σ")
    right.set_ylabel("angle to the unit's hyperplane")
    if not swept.empty:
        right.legend()
    return figure


def _at(rows: pd.DataFrame, activation: str, factor: float) -> pd.DataFrame:
    """The sweep's rows of an activation at a factor."""
    swept = rows[(rows["kind"] == "sweep") & (rows["activation"] == activation)]
    return swept[np.isclose(swept["factor"], factor, rtol=1e-6)]


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Eq. 24-26, and what the text says of small and large sigma."""
    random, swept = rows[rows["kind"] == "random"], rows[rows["kind"] == "sweep"]
    found = [] if random.empty else _formula_claims(random)
    return found + (_limit_claims(rows) if set(swept["activation"]) == set(SLOPES) else [])


def _formula_claims(random: pd.DataFrame) -> list[Claim]:
    errors, folds = _errors(random), len(random)
    facets = max(errors["eq24"], errors["eq25"])
    wrong = int(((random["eq26"] - random["measured26"]).abs() > TOLERANCE).sum())
    return [
        Claim(
            "Theorem 3, Eq. 24, 25",
            "Angles of the facets to the layer-1 hyperplane.",
            "confirmed" if facets < TOLERANCE else "not confirmed",
            f"largest difference to the measured angles {facets:.0e} over {folds} folds.",
        ),
        Claim(
            "Theorem 3, Eq. 26",
            "The angle between two facets is arccos of an absolute value.",
            "confirmed" if wrong == 0 else "wrong in print",
            f"wrong for {wrong} of {folds} folds; π - arccos without the absolute value differs by "
            f"at most {errors['repaired']:.0e} (erratum 25).",
        ),
    ]


def _limit_claims(rows: pd.DataFrame) -> list[Claim]:
    absolute, leaky, relu = (
        _at(rows, activation, SMALL) for activation in ("absolute value", "leaky ReLU", "ReLU")
    )
    flat = pd.concat([_at(rows, activation, LARGE) for activation in SLOPES])
    both, off = float(absolute[["eq24", "eq25"]].max().max()), float(leaky["eq25"].max())
    least, most = float(flat["repaired"].min()), float(flat["eq26"].max())
    return [
        Claim(
            "Appendix C",
            "A small σ folds both facets onto the hyperplane (absolute value).",
            "confirmed" if both < 0.1 else "not confirmed",
            f"largest angle at σ times {SMALL:g}: {both:.0e}.",
        ),
        Claim(
            "Appendix C",
            "A small σ folds one facet onto the hyperplane; the other is unchanged or mildly "
            "folded (ReLU, leaky ReLU).",
            "not confirmed" if off < 0.1 else "confirmed",
            f"at σ times {SMALL:g} the angle of the facet where the unit is off is at most "
            f"{off:.0e} for leaky ReLU of slope 0.1 (as α / σ grows, too), and unchanged, "
            f"{relu['eq25'].median():.2f} in the median, for ReLU.",
        ),
        Claim(
            "Appendix C",
            "A large σ leaves facets unfolded, at an angle of about π.",
            "confirmed" if least > np.pi - 0.1 else "not confirmed",
            f"at σ times {LARGE:g} the angle is at least {least:.4f}; Eq. 26 as printed gives at "
            f"most {most:.0e}.",
        ),
    ]


PART = Experiment(
    "Theorem 3, Eq. 24-26",
    "Angles at which batch normalization folds hyperplanes",
    tasks,
    summarize,
    CAPTION,
    draw,
    claims=claims,
)
