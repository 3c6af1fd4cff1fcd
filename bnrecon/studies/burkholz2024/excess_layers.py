"""LBFGS alone on single layers, by excess of features over n (Burkholz 2024, Sect. 3.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from bnrecon.reporting.figures import PAGE, PALETTE, Figure, new_figure
from bnrecon.reproduction import intervals
from bnrecon.reproduction.intervals import GeometricMean, geometric_mean, paired_difference
from bnrecon.reproduction.parts import (
    Decision,
    Decisions,
    only,
    part,
    read_reported,
    read_text,
    sweep,
    table,
)
from bnrecon.solvers import solve
from bnrecon.solvers.lbfgs import MAX_ITERATIONS
from bnrecon.solvers.spec import SolverSpec
from bnrecon.studies.burkholz2024.layers import STAGES, TARGETS, single_layer

TEXT = read_text(__file__)
REPORTED = read_reported(__package__)["excess"]
# The paper's 80 and 120 features are beyond the minimum width. This is c1 - n, in percent of n.
BOUNDS = [
    100 * (REPORTED["minimum_width"] + extra - REPORTED["n"]) / REPORTED["n"]
    for extra in REPORTED["parameters"]
]
# c1 - n in percent of n, large shares first, as they converge early; ``None`` is the minimum width.
# At 0 second scales are fixed as they are beyond n, but no feature is added.
USUAL = (2.0, 1.0, 0.5, 0.2, 0.1, 0.05, 0.0, None)
SHARES: Mapping[str, tuple[float | None, ...]] = {
    "smoke": (20.0, 5.0, 0.0, None),
    "laptop": USUAL,
    "paper": USUAL,
}
LIMITED = "stopped by the limit"
PAPERS = "paper: 80 to 120 beyond its minimum"
MINIMUM_AT, EQUAL_AT = 0.01, 0.022  # positions of n - c2 + 1 and n on the logarithmic axis
# Seeds by target width w; n = 9 w². On an idle thread, 2,000 iterations take ten seconds at width
# 32, three minutes at width 64.
THREE = {32: (0, 1, 2), 64: (0, 1, 2)}
SEEDS: Mapping[str, Mapping[int, tuple[int, ...]]] = {
    "smoke": {4: (0, 1)},
    "laptop": THREE,
    "paper": THREE,
}


def _named(share: float | None) -> str:
    return "minimum width" if pd.isna(share) else f"{share:g}% more features"


def measure(layer: str, seed: int, share: float | None, options: Sequence[str]) -> pd.DataFrame:
    """One row: the error of a target's layer that LBFGS rebuilds from zero, in float32.

    ``share`` is c1 - n in percent of n, or ``None`` for the minimum width, n - c2 + 1; ``options``
    are overrides of the run whose target is rebuilt, from he_normal features.
    """
    shape = single_layer(layer, seed, 0, options).target.shape
    n = shape.equations
    excess = shape.minimum_width - n
    if share is not None:
        excess = max(1, round(share / 100 * n)) if share else 0
    single = single_layer(layer, seed, excess, options)
    solution = solve(single.system, SolverSpec("lbfgs"))
    error, assembled = single.errors(single.system.scales(solution.scale))
    report = solution.report
    named = math.nan if share is None else share
    row = {"n": n, "share": named, "excess": excess, "layer": layer, "seed": seed}
    row |= {"error": error, "assembled_error": assembled, "iterations": report.iterations}
    return pd.DataFrame([row | {"at_limit": report.at_limit, "seconds": report.seconds}])


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per size and share."""
    columns: dict[str, Any] = {
        "n": "n",
        "c1 - n": "excess",
        "share of n": lambda group: _named(group["share"].iloc[0]).partition(" more")[0],
        "layers": len,
        "error in float64": lambda group: geometric_mean(group["error"]),
        "error in the float32 network": lambda group: geometric_mean(group["assembled_error"]),
        "iterations": lambda group: ", ".join(f"{one:,}" for one in sorted(group["iterations"])),
        LIMITED: _stopped,
    }
    return table(rows, ["n", "excess"], **columns)


def _stopped(rows: pd.DataFrame) -> str:
    return f"{int(rows['at_limit'].sum())} of {len(rows)}"


def draw(rows: pd.DataFrame) -> Figure:
    """Error and iterations of each layer against the share of excess features."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 3.1))
    for (n, group), colour in zip(rows.groupby("n"), PALETTE, strict=False):
        for axes, column in ((left, "error"), (right, "iterations")):
            more = group[group["share"] > 0]
            middle = more.groupby("share")[column].apply(lambda v: geometric_mean(v).mean)
            axes.plot(middle.index, middle, color=colour)
            layers = group["seed"].nunique()
            label = f"n = {n:,}, {layers} layer{'s' if layers > 1 else ''}"
            positions = group["share"].replace(0, EQUAL_AT).fillna(MINIMUM_AT)
            axes.plot(positions, group[column], "o", color=colour, label=label)
    right.axhline(MAX_ITERATIONS, color="grey", linestyle=":", label="limit of iterations")
    for letter, axes in zip("ab", (left, right), strict=True):
        axes.axvspan(*BOUNDS, color="#e6e6e6", label=PAPERS)
        axes.set_xscale("log")
        shares = sorted(rows.loc[rows["share"] > 0, "share"].unique())
        names = ["minimum", "0", *(f"{share:g}" for share in shares)]
        axes.set_xticks([MINIMUM_AT, EQUAL_AT, *shares], names)
        axes.xaxis.minorticks_off()
        axes.set(xlabel="c1 - n, % of n; minimum: c1 = n - c2 + 1", title=f"({letter})")
    left.set(yscale="log", ylabel="relative error ‖W′ − W‖ / ‖W‖")
    right.set_ylim(bottom=0)
    right.set_ylabel("iterations of LBFGS")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Do the paper's few features help LBFGS, in accuracy and in speed? One claim per size."""
    sizes = [_ends(group) for _, group in rows.groupby("n")]
    both = [ends for ends in sizes if {*ends[0]["seed"]} & {*ends[1]["seed"]}]
    return [decide_one(*ends) for decide_one in (_more_accurate, _faster) for ends in both]


def _ends(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    """One size's solves at the minimum width and at the smallest share (the paper's); numbers."""
    none, share = rows[rows["share"].isna()], rows.loc[rows["share"] > 0, "share"].min()
    few, equal = rows[rows["share"] == share], rows[rows["share"] == 0]
    numbers = {"n": rows["n"].iloc[0], "limit": MAX_ITERATIONS, "few": share, "parts": ""}
    if {*none["seed"]} & {*equal["seed"]} & {*few["seed"]}:
        fixed, more = _factor(none, equal), _factor(equal, few)
        numbers["parts"] = " " + TEXT.sentence("parts", fixed=fixed, more=more)
    return none, few, numbers | {"none_stopped": _stopped(none), "few_stopped": _stopped(few)}


def _factor(worse: pd.DataFrame, better: pd.DataFrame) -> GeometricMean:
    """By how much the errors of one setting exceed another's, paired by seed."""
    errors = pd.merge(worse, better, on="seed")
    return geometric_mean(errors["error_x"] / errors["error_y"])


def _more_accurate(none: pd.DataFrame, few: pd.DataFrame, numbers: dict[str, Any]) -> Decision:
    """Whether a few more features than the minimum width reduce the error, by seed."""
    factor = _factor(none, few)
    numbers = numbers | {"factor": factor, "pairs": factor.logarithm.n}
    return "accurate", intervals.decide([factor.logarithm]), numbers


def _faster(none: pd.DataFrame, few: pd.DataFrame, numbers: dict[str, Any]) -> Decision:
    """Whether a few more features need fewer iterations than the minimum width, paired by seed.

    If the limit stopped the minimum width, the computed differences are lower bounds, which can
    confirm but not contradict. If it stopped the other solve, nothing is known.
    """
    least = paired_difference(none, few, "iterations")
    if least is None or few["at_limit"].any():
        return "faster, stopped", "undecided", numbers
    verdict = intervals.decide([least])
    if verdict == "contradicted" and none["at_limit"].any():
        verdict = "undecided"
    return "faster", verdict, numbers | {"least": least}


SIZES = {
    scale: [(width, seed, STAGES[seed]) for width, seeds in by_width.items() for seed in seeds]
    for scale, by_width in SEEDS.items()
}
NAMED = {scale: [(share, _named(share)) for share in shares] for scale, shares in SHARES.items()}
TASKS = sweep(
    measure,
    "width {_width}, seed {seed}, {_named}",
    {("_width", "seed", "layer"): SIZES, ("share", "_named"): NAMED},
    runs={scale: (*run, "target.width={_width}") for scale, run in TARGETS.items()},
    compared={"target.width"},
    reads_target=True,
)
FORMATS = {"error in float64": ".1e", "error in the float32 network": ".1e"}
DROPPED = ["c1 - n", "layers", "error in the float32 network", LIMITED]
EXCERPT = only("share of n", "minimum width", "0%", "0.05%", "2%", drop=DROPPED)
PART = part(__file__, TASKS, summarize, draw, decide, formats=FORMATS, excerpt=EXCERPT)
