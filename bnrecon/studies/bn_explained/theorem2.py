"""Theorem 2 and Corollary 1: does a hyperplane that moves closer to z move closer to x?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.bn_explained.folded_lines import Pieces, affine_pieces, fold
from bnrecon.studies.bn_explained.small_networks import (
    SLOPES,
    Layer,
    SmallNetwork,
    activate,
    draw_network,
)

__all__ = ["PART", "compare_pair", "compare_pairs", "counterexamples", "opposite_sides"]

WIDTHS = {"smoke": ((4,), (3, 2)), "laptop": ((8,), (5, 5)), "paper": ((8,), (5, 5), (4, 4, 4))}
SEEDS = {"smoke": 3, "laptop": 40, "paper": 200}
POINTS, PAIRS = 64, 32  # of a batch, and comparisons a network
THRESHOLDS = 41  # of a scan over [-2 sigma, 2 sigma] around the batch mean
CORNER = 0.1  # slope of the counterexample's leaky ReLU


def compare_pair(
    pieces: Pieces, weight: np.ndarray, x: np.ndarray, output: float, thresholds: np.ndarray
) -> dict[str, bool | float]:
    """The premise and the conclusion of Theorem 2 for one input and two thresholds.

    Args:
        pieces: of the layers before the unit.
        weight: the unit's w (K,).
        x: the input (2,).
        output: <w, z(x)>.
        thresholds: mu and mu', the nearer to the output first.

    Returns:
        ``same_side``: both hyperplanes lie on one side of z, or the first contains it.
        ``empty``: there is no input on the second folded hyperplane.
        ``closer``: the conclusion, d(x, F) < d(x, F').
        ``near``, ``far``: these distances.
    """
    gaps = thresholds - output
    near, far = (
        float(fold(pieces, weight, threshold).distances(x[None])[0]) for threshold in thresholds
    )
    return {
        "same_side": bool(gaps[0] * gaps[1] >= 0),
        "empty": bool(np.isinf(far)),
        "closer": near < far,
        "near": near,
        "far": far,
    }


def _draw_points(generator: np.random.Generator) -> np.ndarray:
    """A batch of three clusters in the plane."""
    centres = 2 * generator.normal(size=(3, 2))
    return centres[generator.integers(3, size=POINTS)] + generator.normal(size=(POINTS, 2)) / 2


def compare_pairs(activation: str, widths: Sequence[int], seeds: int) -> pd.DataFrame:
    """One row per random network: how often the conclusion fails where the premise holds.

    ``on_line``: how far <w, z> is from mu at points of F, in sigma; ``on_point``: the distance of
    inputs to the F whose threshold is their own output. Corollary 1 says that both are 0.
    ``best_threshold``: of a scan, where the mean squared distance of the batch to F is smallest,
    in sigma from the batch mean; ``loss_ratio``: that of the batch mean to the smallest;
    ``nearer_than_zero``: whether it is smaller than that of zero bias.
    """
    rows = []
    for seed in range(seeds):
        generator = np.random.Generator(np.random.Philox(seed))
        points = _draw_points(generator)
        network = draw_network(points, widths, SLOPES[activation], generator)
        weight = generator.normal(size=widths[-1])
        outputs, pieces = network(points) @ weight, affine_pieces(network)
        mean, deviation = outputs.mean(), outputs.std()
        counts = dict.fromkeys(("same", "same_violated", "same_empty", "other", "violated"), 0)
        for number in range(PAIRS):
            thresholds = mean + deviation * generator.normal(size=2)
            thresholds = thresholds[np.argsort(np.abs(thresholds - outputs[number]))]
            found = compare_pair(pieces, weight, points[number], outputs[number], thresholds)
            if found["same_side"] and found["empty"]:
                counts["same_empty"] += 1
            elif found["same_side"]:
                counts["same"] += 1
                counts["same_violated"] += not found["closer"]
            else:
                counts["other"] += 1
                counts["violated"] += not found["closer"]
        row: dict[str, Any] = {
            "kind": "random",
            "activation": activation,
            "widths": " ".join(map(str, widths)),
        }
        row |= {"seed": seed, **counts}
        row |= _check_corollary(network, pieces, weight, points)
        rows.append(row | _scan(pieces, weight, points, mean, deviation))
    return pd.DataFrame(rows)


def _check_corollary(
    network: SmallNetwork, pieces: Pieces, weight: np.ndarray, points: np.ndarray
) -> dict[str, float]:
    """Both directions of Corollary 1."""
    outputs = network(points) @ weight
    segments = fold(pieces, weight, outputs.mean())
    span = np.abs(points).max()
    low, high = segments.low.clip(-span, span), segments.high.clip(-span, span)
    kept = low < high
    middle = ((low + high) / 2)[kept, None] * segments.direction[kept] + segments.origin[kept]
    on_line = np.abs(network(middle) @ weight - outputs.mean()).max(initial=0) / outputs.std()
    on_point = max(
        float(fold(pieces, weight, output).distances(point[None])[0])
        for output, point in zip(outputs[:8], points[:8], strict=True)
        if _varies(network, weight, point)
    )
    return {"on_line": float(on_line), "on_point": on_point}


def _varies(network: SmallNetwork, weight: np.ndarray, point: np.ndarray) -> bool:
    """Whether the output is not constant around a point, as where all ReLUs are off.

    There F is a region and not a line.
    """
    around = point + 1e-6 * np.array([[0, 0], [1, 0], [0, 1]])
    return bool(np.ptp(network(around) @ weight) > 0)


def _scan(
    pieces: Pieces, weight: np.ndarray, points: np.ndarray, mean: float, deviation: float
) -> dict[str, float | bool]:
    """Mean squared distances of the batch to F at thresholds around the batch mean."""
    shifts = np.linspace(-2, 2, THRESHOLDS)
    losses = np.array(
        [
            np.square(fold(pieces, weight, mean + shift * deviation).distances(points)).mean()
            for shift in shifts
        ]
    )
    best, own = int(losses.argmin()), losses[THRESHOLDS // 2]
    zero = np.square(fold(pieces, weight, 0.0).distances(points)).mean()
    return {
        "best_threshold": float(shifts[best]),
        "loss_ratio": float(own / losses[best]),
        "nearer_than_zero": bool(own < zero),
    }


def opposite_sides() -> tuple[SmallNetwork, np.ndarray, np.ndarray]:
    """A network of one leaky ReLU, x = 0 and thresholds (-1/2, 1) that violate Theorem 2.

    Its batch statistics are those of the inputs (-1, 0) and (1, 0).
    """
    layer = Layer(np.array([[1.0, 0.0]]), np.zeros(1), np.ones(1))
    return SmallNetwork((layer,), CORNER), np.zeros(2), np.array([-0.5, 1.0])


def counterexamples() -> pd.DataFrame:
    """Two rows: hyperplanes on different sides of z, and one that no input reaches."""
    rows = []
    leaky, x, opposite = opposite_sides()
    absolute = SmallNetwork(leaky.layers, -1.0)
    cases = {
        "different sides": (leaky, "leaky ReLU", opposite),
        "no input on F'": (absolute, "absolute value", np.array([-0.5, -1.0])),
    }
    for name, (network, activation, thresholds) in cases.items():
        found = compare_pair(affine_pieces(network), np.ones(1), x, 0.0, thresholds)
        row = {"kind": name, "activation": activation, "widths": "1", "seed": 0}
        rows.append(
            row | found | {"layer_near": abs(thresholds[0]), "layer_far": abs(thresholds[1])}
        )
    return pd.DataFrame(rows)


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """The counterexamples, and a task for each activation and network."""
    random = [
        Task(
            f"{activation}, {widths}",
            compare_pairs,
            {"activation": activation, "widths": list(widths), "seeds": SEEDS[scale]},
        )
        for activation in SLOPES
        for widths in WIDTHS[scale]
    ]
    return [Task("counterexamples", counterexamples), *random]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per activation and network."""
    lines = []
    random = rows[rows["kind"] == "random"]
    for (activation, widths), group in random.groupby(["activation", "widths"], sort=False):
        same, other = int(group["same"].sum()), int(group["other"].sum())
        lines.append(
            {
                "activation": activation,
                "units before": widths,
                "same side": str(same),
                "violated": f"{group['same_violated'].sum():.0f}",
                "same side, F' empty": f"{group['same_empty'].sum():.0f}",
                "different sides": str(other),
                "violated there": f"{group['violated'].sum():.0f} "
                f"({100 * group['violated'].sum() / max(other, 1):.0f}%)",
                "Corollary 1, largest error": f"{group[['on_line', 'on_point']].max().max():.0e}",
                "batch mean is best": f"{(group['best_threshold'] == 0).sum()} of {len(group)}",
                "median loss to the best": f"{group['loss_ratio'].median():.2f}",
                "better than zero bias": f"{group['nearer_than_zero'].sum():.0f} of {len(group)}",
            }
        )
    for row in rows[rows["kind"] != "random"].itertuples():
        line = {"activation": row.activation, "units before": f"{row.widths}, {row.kind}"}
        column = "same side, F' empty" if row.empty else "violated there"
        distances = f"{row.layer_near:g} < {row.layer_far:g}, but {row.near:g} and {row.far:g}"
        lines.append(line | {column: distances})
    return pd.DataFrame(lines).fillna("")


CAPTION = (
    "Random networks on 2-D inputs with batch statistics; distances to folded hyperplanes F are "
    "exact, facet by facet. A pair is an input and two thresholds around the batch mean, where the "
    "hyperplane H is nearer to z than H'. Theorem 2 says that F is then nearer to x than F'. "
    "Violated: it is not. F' is empty where no input reaches its threshold. Last rows: "
    "counterexamples, with the distances of z to H and H' and of x to F and F'. Last columns: in "
    "the input space, is the batch mean the best of 41 thresholds for the mean squared distance of "
    "the batch to F, its ratio to the best one, and for how many units it is better than a "
    "threshold of 0. The figure is a counterexample: one leaky ReLU, x = 0."
)


def draw(_rows: pd.DataFrame) -> Figure:
    """The counterexample: the unit's output along the first input, and both thresholds."""
    figure, axes = new_figure()
    network, _, thresholds = opposite_sides()
    inputs = np.linspace(-6, 2, 401)
    axes.plot(inputs, activate(inputs, network.slope), color="black", label="⟨w, z(x)⟩")
    for threshold, name, colour in zip(thresholds, ("μ", "μ'"), PALETTE, strict=False):
        place = threshold if threshold > 0 else threshold / network.slope
        axes.axhline(threshold, color=colour, linestyle=":")
        label = f"{name} = {threshold:g}: x = {place:g}"
        axes.plot([place], [threshold], "o", color=colour, label=label)
    axes.plot([0], [0], "k*", label="input x = 0")
    axes.set_xlabel("input")
    axes.set_ylabel("pre-activation of layer 2")
    axes.legend()
    return figure


def _towards(random: pd.DataFrame) -> str:
    """Nearer for significantly more than half of the units (two standard errors)."""
    share, n = float(random["nearer_than_zero"].astype(float).mean()), len(random)
    return "confirmed" if share > 0.5 + 1 / n**0.5 else "not confirmed"


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Theorem 2, its repaired form, and Corollary 1."""
    random = rows[rows["kind"] == "random"]
    if random.empty:
        return []
    same, same_violated = int(random["same"].sum()), int(random["same_violated"].sum())
    other, violated = int(random["other"].sum()), int(random["violated"].sum())
    error = random[["on_line", "on_point"]].max().max()
    best = int((random["best_threshold"] == 0).sum())
    example = rows[(rows["kind"] == "different sides") & (rows["near"] >= rows["far"])]
    numbers = "".join(
        f" (counterexample: {row.layer_near:g} < {row.layer_far:g}, but {row.near:g} > {row.far:g})"
        for row in example.itertuples()
    )
    return [
        Claim(
            "Theorem 2",
            "A hyperplane nearer to z(x) is folded to one nearer to x.",
            "wrong in print" if violated + len(example) else "confirmed",
            f"false for {violated} of {other} pairs on different sides of z{numbers}; erratum 23.",
        ),
        Claim(
            "Theorem 2, repaired",
            "The same, for hyperplanes on one side of z of which the farther one is reached.",
            "confirmed" if same_violated == 0 else "not confirmed",
            f"{same_violated} of {same} pairs violate it.",
        ),
        Claim(
            "Corollary 1",
            "z lies on a hyperplane if and only if x lies on the folded one.",
            "confirmed" if error < 1e-8 else "not confirmed",
            f"largest error {error:.0e} in both directions, over {len(random)} networks.",
        ),
        Claim(
            "Sect. 1",
            '"BN adapts the layer/DN input space spline partition to minimize the total least '
            'squares distance" to the layer/DN inputs.',
            "confirmed" if best == len(random) else "wrong in print",
            f"right for a layer (Theorem 1); in the network's input space the batch mean is the "
            f"best of {THRESHOLDS} thresholds for {best} of {len(random)} units, its mean squared "
            f"distance {random['loss_ratio'].median():.2f} times the smallest (median).",
        ),
        Claim(
            "Sect. 3.2",
            "The batch mean translates folded hyperplanes towards the data.",
            _towards(random),
            f"the mean squared distance of the batch to F is smaller than with zero bias for "
            f"{random['nearer_than_zero'].sum():.0f} of {len(random)} units.",
        ),
    ]


PART = Experiment(
    "Theorem 2, Corollary 1",
    "Translating a hyperplane in a layer's input space and in the network's",
    tasks,
    summarize,
    CAPTION,
    draw,
    claims=claims,
)
