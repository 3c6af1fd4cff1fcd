"""Theorem 3: dihedral angles of folded hyperplanes, Eq. 24-26, and how sigma changes them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.bn_explained.folds import measure_folds, measure_spread, sweep
from bnrecon.studies.bn_explained.small_networks import SLOPES

__all__ = ["PART"]

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
    spread = Task("sigma on the digits", measure_spread, {"units": RANDOM_UNITS[scale]})
    return [*random, *sweeps, spread]


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
                "inputs D": f"{inputs:.0f}",
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
        for factor in (LIMIT, SMALL, 1, LARGE):
            middle = _at(rows, activation, factor)[[*ANGLES.values()]].median()
            line = {"activation": f"{activation}, σ times {factor:g}"}
            lines.append(line | {title: f"{middle[name]:.3f}" for title, name in ANGLES.items()})
    for row in rows[rows["kind"] == "spread"].itertuples():
        name = f"σ/‖w‖ on digits: {row.smallest:.2f} to {row.largest:.2f} of its median"
        lines.append(
            {"activation": name, "inputs D": f"{row.inputs:.0f}", "units": f"{row.units:.0f}"}
        )
    return pd.DataFrame(lines).fillna("")


CAPTION = (
    "Largest differences to measured angles, in radians. Measured: between half-hyperplanes, from "
    "null spaces of the network's gradient on both sides of the fold. Repaired, Eq. 26 is "
    "π - arccos(⟨n, n'⟩ / ‖n‖‖n'‖) without the absolute value; in print it gives this angle's "
    "supplement where the facets are folded by less than a right angle. Further rows: median "
    "angles, by formula, when the σ of one unit is multiplied and its weights and all other σ "
    "stay: by Eq. 24 only σ/‖w‖ relative to the other units matters. Last row: how much σ/‖w‖ of "
    "random units differs on real inputs. Figure: left, Eq. 26 against measured angles; right, "
    "the median angles of the sweep, of the facets where the unit is on (solid) and off (dashed) "
    "to the unit's hyperplane. They need not be monotone: where the part of a facet's normal along "
    "w passes through zero, the angle is π/2. For ReLU the dashed line does not depend on σ."
)


def draw(rows: pd.DataFrame) -> Figure:
    """Eq. 26 against measurement, and angles against sigma."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 3.0), width_ratios=(1, 1.25))
    random, swept = rows[rows["kind"] == "random"], rows[rows["kind"] == "sweep"]
    if not random.empty:
        measured = random["measured26"]
        left.plot(measured, random["eq26"], ".", color=PALETTE[3], label="Eq. 26 in print")
        left.plot(measured, random["repaired"], ".", color=PALETTE[0], label="repaired")
        left.legend()
    left.set_xlabel("measured angle of the facets, rad")
    left.set_ylabel("by formula, rad")
    left.set_aspect("equal")
    for (activation, group), colour in zip(
        swept.groupby("activation", sort=False), PALETTE, strict=False
    ):
        middle = group.groupby("factor")[["eq24", "eq25"]].median()
        right.semilogx(middle.index, middle["eq24"], color=colour, label=str(activation))
        right.semilogx(middle.index, middle["eq25"], "--", color=colour)
    right.set_xlabel("factor of one unit's σ")
    right.set_ylabel("angle to the unit's hyperplane, rad")
    if not swept.empty:
        right.plot([], [], color="grey", label="unit on")
        right.plot([], [], "--", color="grey", label="unit off")
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
    if set(swept["activation"]) == set(SLOPES):
        found += [*_limit_claims(rows), *_leaky_claims(rows)]
    return found


def _formula_claims(random: pd.DataFrame) -> list[Claim]:
    errors, folds = _errors(random), len(random)
    facets = max(errors["eq24"], errors["eq25"])
    wrong = int(((random["eq26"] - random["measured26"]).abs() > TOLERANCE).sum())
    return [
        Claim(
            "Theorem 3, Eq. 24, 25",
            "Angles of the facets to the layer-1 hyperplane.",
            "confirmed" if facets < TOLERANCE else "contradicted",
            f"largest difference to the measured angles {facets:.0e} over {folds} folds.",
        ),
        Claim(
            "Theorem 3, Eq. 26",
            "The angle between two facets is arccos of an absolute value.",
            "confirmed" if wrong == 0 else "false as stated",
            f"wrong for {wrong} of {folds} folds; π - arccos without the absolute value differs by "
            f"at most {errors['repaired']:.0e} (erratum 25).",
        ),
    ]


def _limit_claims(rows: pd.DataFrame) -> list[Claim]:
    """Absolute value and ReLU for a small sigma, and all activations for a large one."""
    both = float(_at(rows, "absolute value", LIMIT)[["eq24", "eq25"]].max().max())
    on = float(_at(rows, "ReLU", LIMIT)["eq24"].max())
    swept = rows[(rows["kind"] == "sweep") & (rows["activation"] == "ReLU")]
    off = swept.dropna(subset=["eq25"]).groupby("seed")["eq25"].agg(["min", "max"])
    change, folds = float((off["max"] - off["min"]).max()), swept["seed"].nunique()
    flat = pd.concat([_at(rows, activation, LARGE) for activation in SLOPES])
    least, most = float(flat["repaired"].min()), float(flat["eq26"].max())
    return [
        Claim(
            "Appendix C",
            "A small σ folds both facets onto the hyperplane (absolute value).",
            "confirmed" if both < ALIGNED else "contradicted",
            f"largest angle at σ times {LIMIT:g}: {both:.0e}.",
        ),
        Claim(
            "Appendix C",
            "A small σ folds one facet onto the hyperplane; the other is unchanged (ReLU).",
            "confirmed" if on < ALIGNED and change < TOLERANCE else "contradicted",
            f"largest angle of the facet where the unit is on at σ times {LIMIT:g}: {on:.0e}; the "
            f"other's changes by at most {change:.0e} over all factors, in the {len(off)} of "
            f"{folds} networks that have it.",
        ),
        Claim(
            "Appendix C",
            "A large σ leaves facets unfolded, at an angle of about π.",
            "confirmed" if least > np.pi - ALIGNED else "contradicted",
            f"at σ times {LARGE:g} the angle is at least {least:.4f}; Eq. 26 as printed gives at "
            f"most {most:.0e}.",
        ),
    ]


def _leaky_claims(rows: pd.DataFrame) -> list[Claim]:
    """The same for leaky ReLU, at a moderately small sigma and in the limit."""
    before, small, limit = (
        _at(rows, "leaky ReLU", factor)[["eq24", "eq25"]] for factor in (1, SMALL, LIMIT)
    )
    (on, off), whole = small.median(), before["eq25"].median()
    mild = on < whole / 2 < off
    spread = "".join(
        f" On the digits σ/‖w‖ of {row.units:.0f} random units is {row.smallest:.2f} to "
        f"{row.largest:.2f} times its median."
        for row in rows[rows["kind"] == "spread"].itertuples()
    )
    return [
        Claim(
            "Appendix C",
            "A small σ folds one facet onto the hyperplane; the other is mildly folded (leaky "
            "ReLU).",
            "confirmed" if mild else "contradicted",
            f"at σ times {SMALL:g} the median angles are {on:.2f} where the unit is on and "
            f"{off:.2f} where it is off, {whole:.2f} before.{spread}",
        ),
        Claim(
            "Beyond Appendix C: the limit",
            "The same in the limit σ → 0 (the paper says: small σ).",
            "contradicted" if limit["eq25"].max() < ALIGNED else "confirmed",
            f"at σ times {LIMIT:g} both facets are aligned, within {limit['eq25'].max():.0e}: the "
            f"second one is folded as by σ / α, here α = {SLOPES['leaky ReLU']:g} (erratum 26).",
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
