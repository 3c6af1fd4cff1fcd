"""Theorem 2 and Corollary 1: does a hyperplane that moves closer to z move closer to x?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from bnrecon.reporting.figures import COLUMN, PALETTE, Axes, Figure, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction import intervals
from bnrecon.reproduction.parts import Decisions, below, join, part, sweep
from bnrecon.studies.bn_explained import small_networks as small

POINTS, PAIRS = 64, 32  # per batch, and comparisons per network
COUNTS = {  # of pairs, with their names in the table
    "same": "one side: pairs",
    "same_violated": "one side: violated",
    "same_empty": "one side: F or F' empty",
    "other": "two sides: pairs",
    "other_violated": "two sides: violated",
    "other_empty": "two sides: F or F' empty",
}
THRESHOLDS = 41  # of a scan over [-2 sigma, 2 sigma] around the batch mean
INPUT = (0.1, 0.0)  # x of the counterexamples
WIDTHS = {"smoke": ((4,), (3, 2)), "laptop": ((8,), (5, 5)), "paper": ((8,), (5, 5), (4, 4, 4))}
SEEDS = {"smoke": 3, "laptop": 40, "paper": 200}


def compare_pair(
    pieces: small.Pieces, weight: np.ndarray, x: np.ndarray, output: float, thresholds: np.ndarray
) -> dict[str, bool | float]:
    """The premise and conclusion of Theorem 2 for one input x (2,) and two thresholds.

    The thresholds are mu and mu', the nearer to the output <w, z(x)> first, of a unit with weight w
    (K,) that follows layers with these pieces.

    Returns:
        ``same_side``: both hyperplanes lie on one side of z, or the first contains it.
        ``empty``: one of the folded hyperplanes has no input.
        ``closer``: the conclusion, d(x, F) < d(x, F').
        ``near``, ``far``: these distances.
    """
    gaps = thresholds - output
    near, far = (float(small.fold(pieces, weight, mu).distances(x[None])[0]) for mu in thresholds)
    pair = {"same_side": bool(gaps[0] * gaps[1] >= 0), "empty": bool(np.isinf(max(near, far)))}
    return pair | {"closer": near < far, "near": near, "far": far}


def compare_pairs(activation: str, widths: Sequence[int], seeds: int) -> pd.DataFrame:
    """One row per random network: how often the conclusion fails if the premise holds.

    ``same`` and ``other`` count pairs of hyperplanes on one side of z and on different sides, with
    inputs on both folded hyperplanes; ``_violated`` those where the conclusion fails; ``_empty``
    omitted pairs, where a folded hyperplane has no input.
    ``on_line``: how far <w, z> is from mu at points of F, in sigma; ``on_point``: the distance of
    inputs to the F whose threshold is their output. Corollary 1 says that both are 0.
    ``best_threshold``: where a scan's mean squared distance of the batch to F is smallest, in sigma
    from the batch mean; ``loss_ratio``: the batch mean's over the smallest;
    ``nearer_than_zero``: whether the batch mean's is below that with zero bias in all layers.
    """
    rows = []
    for seed in range(seeds):
        generator = np.random.Generator(np.random.Philox(seed))
        centres = 2 * generator.normal(size=(3, 2))  # of three clusters
        points = centres[generator.integers(3, size=POINTS)]
        points = points + generator.normal(size=(POINTS, 2)) / 2
        network = small.draw_network(points, widths, small.SLOPES[activation], generator)
        weight = generator.normal(size=widths[-1])
        outputs, pieces = network(points) @ weight, small.affine_pieces(network)
        mean, deviation = outputs.mean(), outputs.std()
        counts = dict.fromkeys(COUNTS, 0)
        for number in range(PAIRS):
            thresholds = mean + deviation * generator.normal(size=2)
            thresholds = thresholds[np.argsort(np.abs(thresholds - outputs[number]))]
            pair = compare_pair(pieces, weight, points[number], outputs[number], thresholds)
            side = "same" if pair["same_side"] else "other"
            counts[f"{side}_empty" if pair["empty"] else side] += 1
            counts[f"{side}_violated"] += not (pair["empty"] or pair["closer"])
        row: dict[str, Any] = {"kind": "random", "activation": activation}
        row |= {"widths": " ".join(map(str, widths)), "seed": seed, **counts}
        row |= _check_corollary(network, pieces, weight, points)
        row |= _scan(pieces, weight, points, mean, deviation)
        plain = without_normalization(network)
        zero = np.square(distances_with_zero_bias(plain, weight, points)).mean()
        row["nearer_than_zero"] = bool(row["loss"] < zero)
        row["zero_is_point"] = not len(small.fold(small.affine_pieces(plain), weight, 0.0).origin)
        rows.append(row)
    return pd.DataFrame(rows)


def _check_corollary(
    network: small.SmallNetwork, pieces: small.Pieces, weight: np.ndarray, points: np.ndarray
) -> dict[str, float]:
    """Both directions of Corollary 1."""
    outputs = network(points) @ weight
    segments = small.fold(pieces, weight, outputs.mean())
    span = np.abs(points).max()
    low, high = segments.low.clip(-span, span), segments.high.clip(-span, span)
    shown = low < high
    middle = ((low + high) / 2)[shown, None] * segments.direction[shown] + segments.origin[shown]
    on_line = np.abs(network(middle) @ weight - outputs.mean()).max(initial=0) / outputs.std()
    on_point = max(
        float(small.fold(pieces, weight, output).distances(point[None])[0])
        for output, point in zip(outputs[:8], points[:8], strict=True)
        if _varies(network, weight, point)
    )
    return {"on_line": float(on_line), "on_point": on_point}


def _varies(network: small.SmallNetwork, weight: np.ndarray, point: np.ndarray) -> bool:
    """Whether the output varies around a point: where all ReLUs are off, F is a region."""
    around = point + 1e-6 * np.array([[0, 0], [1, 0], [0, 1]])
    return bool(np.ptp(network(around) @ weight) > 0)


def _scan(
    pieces: small.Pieces, weight: np.ndarray, points: np.ndarray, mean: float, deviation: float
) -> dict[str, float | bool]:
    """Mean squared distances of the batch to F at thresholds around the batch mean."""
    shifts = np.linspace(-2, 2, THRESHOLDS)
    folded = (small.fold(pieces, weight, mean + shift * deviation) for shift in shifts)
    losses = np.array([np.square(one.distances(points)).mean() for one in folded])
    best, middle = int(losses.argmin()), losses[THRESHOLDS // 2]
    ratio = float(middle / losses[best])
    return {"best_threshold": float(shifts[best]), "loss": float(middle), "loss_ratio": ratio}


def without_normalization(network: small.SmallNetwork) -> small.SmallNetwork:
    """Eq. 1 with the same weights and zero bias in all layers (Sect. 3.3)."""
    zero, one = np.zeros_like, np.ones_like
    layers = (small.Layer(n.weight, zero(n.mean), one(n.deviation)) for n in network.layers)
    return small.SmallNetwork(tuple(layers), network.slope)


def distances_with_zero_bias(
    plain: small.SmallNetwork, weight: np.ndarray, points: np.ndarray
) -> np.ndarray:
    """Distances (N,) of points to F = {x: <w, z(x)> = 0} of a network without biases.

    F contains x = 0, and the regions where all ReLUs are off.
    """
    lines = small.fold(small.affine_pieces(plain), weight, 0.0).distances(points)
    outside = np.minimum(lines, np.linalg.norm(points, axis=1))
    return np.where(plain(points) @ weight == 0, 0, outside)


def opposite_sides() -> tuple[small.SmallNetwork, np.ndarray, np.ndarray]:
    """A network of one leaky ReLU, an input and thresholds (-1/2, 1) that violate Theorem 2.

    Its batch statistics are those of the inputs (-1, 0) and (1, 0).
    """
    layer = small.Layer(np.array([[1.0, 0.0]]), np.zeros(1), np.ones(1))
    network = small.SmallNetwork((layer,), small.SLOPES["leaky ReLU"])
    return network, np.array(INPUT), np.array([-0.5, 1.0])


def counterexamples() -> pd.DataFrame:
    """Two rows: hyperplanes on different sides of z, and one that no input reaches."""
    rows = []
    leaky, x, opposite = opposite_sides()
    absolute = small.SmallNetwork(leaky.layers, -1.0)
    cases = {
        "different sides": (leaky, "leaky ReLU", opposite),
        "no input on F and F'": (absolute, "absolute value", np.array([-0.5, -1.0])),
    }
    for name, (network, activation, thresholds) in cases.items():
        output = float(network(x[None])[0, 0])
        pair = compare_pair(small.affine_pieces(network), np.ones(1), x, output, thresholds)
        row = {"kind": name, "activation": activation, "widths": "1", "seed": 0}
        near, far = np.abs(thresholds - output)
        rows.append(row | pair | {"layer_near": near, "layer_far": far})
    return pd.DataFrame(rows)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per activation and network."""
    lines = []
    random = rows[rows["kind"] == "random"]
    for (activation, widths), group in random.groupby(["activation", "widths"], sort=False):
        line = {"activation": activation, "units before": widths}
        line |= {title: f"{group[name].sum():.0f}" for name, title in COUNTS.items()}
        line["Corollary 1, largest error"] = f"{group[['on_line', 'on_point']].max().max():.0e}"
        line["batch mean is best"] = f"{(group['best_threshold'] == 0).sum()} of {len(group)}"
        line["median loss to the best"] = f"{group['loss_ratio'].median():.2f}"
        line["nearer than zero bias"] = f"{group['nearer_than_zero'].sum():.0f} of {len(group)}"
        lines.append(line | {"zero bias: F a point": f"{group['zero_is_point'].sum():.0f}"})
    for row in rows[rows["kind"] != "random"].itertuples():
        line = {"activation": row.activation, "units before": f"{row.widths}, {row.kind}"}
        reached = "none on F, F'" if row.empty else f"{row.near:g} > {row.far:g}"
        column = COUNTS["same_empty" if row.empty else "other_violated"]
        lines.append(line | {column: f"{row.layer_near:g} < {row.layer_far:g}, but {reached}"})
    return pd.DataFrame(lines).fillna("")


def draw(_rows: pd.DataFrame) -> Figure:
    """Draw the counterexample: the unit's output along the first input, and both thresholds."""
    figure, axes = new_figure(size=(COLUMN, 2.8))
    network, point, thresholds = opposite_sides()
    x, z = point[0], network(point[None])[0, 0]
    inputs = np.linspace(-6, 2, 401)
    axes.plot(inputs, small.activate(inputs, network.slope), color="black", label="⟨w, z(x)⟩")
    for threshold, name, colour in zip(thresholds, ("", "'"), PALETTE, strict=False):
        zero = threshold if threshold > 0 else threshold / network.slope
        label = f"μ{name} = {threshold:g}, F{name}: x = {zero:g}"
        axes.axhline(threshold, color=colour, linestyle=":")
        axes.plot([zero], [threshold], "o", color=colour, label=label)
        side = np.sign(threshold - z)
        _arrow(axes, (x, threshold), (zero, threshold), colour, (0, 6 * side))
        _arrow(axes, (x, z), (x, threshold), colour, (-14 * side, 0))
    axes.plot([x], [z], "k*", label=f"input x = {x:g}")
    axes.set(ylim=(-1.0, 2.2), xlabel="input", ylabel="⟨w, z(x)⟩, layer 2")
    axes.legend(loc="upper left")
    return figure


Point = tuple[float, float]


def _arrow(axes: Axes, start: Point, end: Point, colour: str, offset: Point) -> None:
    """Draw a two-headed arrow, with its length at the middle plus an offset in points."""
    style: dict[str, Any] = {"arrowstyle": "<->", "color": colour, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops=style)
    middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
    length = f"{np.abs(np.subtract(end, start)).max():g}"
    style = {"color": colour, "ha": "center", "va": "center"}
    axes.annotate(length, middle, offset, textcoords="offset points", **style)


def _towards(random: pd.DataFrame) -> str:
    """Nearer for more than half of the units? Over seeds, as a seed's networks share inputs."""
    shares = random["nearer_than_zero"].astype(float).groupby(random["seed"]).mean()
    return intervals.decide([mean_interval(list(shares)) - 0.5])


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide Theorem 2, its repaired form, and Corollary 1."""
    random = rows[rows["kind"] == "random"]
    if random.empty:
        return {}, {}
    sides = rows[rows["kind"] == "different sides"]
    lines = random[~random["zero_is_point"].astype(bool)]
    columns = ("same", "same_violated", "other", "other_violated", "nearer_than_zero")
    numbers = {name: int(random[name].sum()) for name in columns} | {
        "error": random[["on_line", "on_point"]].max().max(),
        "networks": len(random),
        "thresholds": THRESHOLDS,
        "best": int((random["best_threshold"] == 0).sum()),
        "loss_ratio": random["loss_ratio"].median(),
        "nearer_lines": lines["nearer_than_zero"].sum(),
        "lines": len(lines),
    }
    fails = numbers["other_violated"] > 0 or (len(sides) and (sides["near"] > sides["far"]).any())
    return {
        "Theorem 2": "needs a condition" if fails else True,
        "Theorem 2, repaired": numbers["same_violated"] == 0,
        "Corollary 1": bool(numbers["error"] < 1e-8),
        "Sect. 1": True if numbers["best"] == len(random) else "needs a condition",
        "Sect. 3.2": _towards(random),
    }, numbers


LISTED = {scale: [(list(units), units) for units in WIDTHS[scale]] for scale in WIDTHS}
OVER = {"activation": tuple(small.SLOPES), ("widths", "_units"): LISTED}
TASKS = join(
    sweep(counterexamples, "counterexamples", {}),
    sweep(compare_pairs, "{activation}, {_units}", OVER, {"seeds": SEEDS}),
)
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=below)
