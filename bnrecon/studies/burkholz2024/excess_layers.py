"""LBFGS alone on single layers, by excess of features over n (Burkholz 2024, Sect. 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task, no_overrides
from bnrecon.reproduction.options import refuse_compared
from bnrecon.reproduction.study import read_reported
from bnrecon.solvers import solve
from bnrecon.solvers.lbfgs import MAX_ITERATIONS
from bnrecon.solvers.spec import SolverSpec
from bnrecon.studies.burkholz2024.log_means import exponent, geometric_mean
from bnrecon.studies.burkholz2024.single_layers import STAGES, TARGETS, single_layer

__all__ = ["PART"]

REPORTED = read_reported(__package__)["excess"]
# c1 - n in percent of n. The paper's 80 and 120 are 0.2% and 0.3% of its n.
SHARES = {"smoke": (20.0, 5.0), "laptop": (2.0, 1.0, 0.5, 0.2, 0.05)}
# Seeds by width of the target; n = 9 w². 2,000 iterations take half a minute of an idle thread at
# width 32, seven minutes at width 64.
SEEDS: Mapping[str, Mapping[int, tuple[int, ...]]] = {
    "smoke": {4: (0, 1)},
    "laptop": {32: (0, 1, 2), 64: (0,)},
    "paper": {32: (0, 1, 2), 64: (0, 1, 2)},
}


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """A task for each size, seed and share; large shares, which converge early, come first."""
    refuse_compared(options, {"target.width"})
    return [
        Task(
            f"width {width}, seed {seed}, {share:g}% more features",
            measure,
            {"layer": STAGES[seed], "seed": seed, "share": share},
            (*TARGETS[scale], f"target.width={width}", *options),
        )
        for width, seeds in SEEDS[scale].items()
        for seed in seeds
        for share in SHARES.get(scale, SHARES["laptop"])
    ]


def measure(layer: str, seed: int, share: float, options: Sequence[str]) -> pd.DataFrame:
    """One row: the error of a layer that LBFGS rebuilds from zero, in float32.

    Args:
        layer: its name in the target.
        seed: of the he_normal features.
        share: c1 - n in percent of n.
        options: overrides of the run whose target is rebuilt.
    """
    n = single_layer(layer, seed, 0, options).target.shape.equations
    excess = max(1, round(share / 100 * n))
    part = single_layer(layer, seed, excess, options)
    found = solve(part.system, SolverSpec("lbfgs"))
    error, assembled = part.errors(part.system.scales(found.scale))
    report = found.report
    row = {"n": n, "share": share, "excess": excess, "layer": layer, "seed": seed}
    row |= {"error": error, "assembled_error": assembled, "iterations": report.iterations}
    return pd.DataFrame([row | {"at_limit": report.at_limit, "seconds": report.seconds}])


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per size and share."""
    lines = []
    for (n, share, excess), group in rows.groupby(["n", "share", "excess"]):
        steps = sorted(group["iterations"])
        lines.append(
            {
                "n": n,
                "excess features": excess,
                "share of n": f"{share:g}%",
                "layers": len(group),
                "error in float64": geometric_mean(list(group["error"])),
                "error in the float32 network": geometric_mean(list(group["assembled_error"])),
                "iterations": ", ".join(f"{step:,}" for step in steps),
                "stopped by the limit": f"{int(group['at_limit'].sum())} of {len(group)}",
            }
        )
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Error and iterations of each layer against the share of excess features."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 3.1))
    for (n, group), colour in zip(rows.groupby("n"), PALETTE, strict=False):
        for axes, column in ((left, "error"), (right, "iterations")):
            middle = group.groupby("share")[column].apply(lambda v: geometric_mean(list(v)).mean)
            axes.plot(middle.index, middle, color=colour)
            label = f"n = {n:,}, {group['seed'].nunique()} layers"
            axes.plot(group["share"], group[column], "o", color=colour, label=label)
    right.axhline(MAX_ITERATIONS, color="grey", linestyle=":", label="limit of iterations")
    low, high = (100 * extra / REPORTED["n"] for extra in REPORTED["parameters"])
    for letter, axes in zip("ab", (left, right), strict=True):
        axes.axvspan(low, high, color="#e6e6e6", label="the paper's 80 to 120 of 36,864")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xticks(shares := sorted(rows["share"].unique()), [f"{s:g}" for s in shares])
        axes.xaxis.minorticks_off()
        axes.set_xlabel("features beyond n, % of n")
        axes.set_title(f"({letter})", loc="left")
    left.set_ylabel("relative error ‖W′ − W‖ / ‖W‖")
    right.set_ylabel("iterations of LBFGS")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Does a small excess of features help LBFGS, in accuracy and in speed?"""
    return [
        _falls(rows, "error", "A few features more make gradient-based solvers more accurate."),
        _falls(rows, "iterations", "A few features more make gradient-based solvers faster."),
    ]


def _falls(rows: pd.DataFrame, column: str, statement: str) -> Claim:
    """Whether a column falls with the share at each size, by the slope of the logarithms."""
    slopes = {
        n: exponent(list(group["share"]), list(group[column]))
        for n, group in rows.groupby("n")
        if group["share"].nunique() > 1
    }
    if not slopes:
        return Claim("Sect. 3.2", statement, "open", "one share is no comparison.")
    signs = {_sign(slope) for slope in slopes.values()}
    verdict = {-1: "confirmed", 1: "not confirmed"}.get(signs.pop(), "open")
    if signs:
        verdict = "open"
    listed = "; ".join(f"{_written(slope)} at n = {n:,}" for n, slope in slopes.items())
    limited = int(rows["at_limit"].sum())
    return Claim(
        "Sect. 3.2",
        statement,
        verdict,
        f"{column} of LBFGS ~ (c1/n - 1)^p with p = {listed}, the slope of the logarithms with the "
        f"half-width of its 95% Student-t interval (comparisons: {len(slopes)}). {limited} of "
        f"{len(rows)} solves were stopped by the limit of iterations.",
    )


def _written(slope: Interval) -> str:
    spread = "" if slope.half_width is None else f" ± {slope.half_width:.2f}"
    return f"{slope.mean:.2f}{spread} ({slope.n} solves)"


def _sign(slope: Interval) -> int:
    if slope.half_width is None or abs(slope.mean) <= slope.half_width:
        return 0
    return 1 if slope.mean > 0 else -1


PART = Experiment(
    "Sect. 3.2",
    "LBFGS with a few more features than equations, layer by layer and by share of n",
    tasks,
    summary,
    "A layer of the trained relu target is rebuilt from he_normal features by LBFGS alone, in "
    f"float32, from zero, with at most {MAX_ITERATIONS:,} iterations (the paper states no limit). "
    'The paper adds "less than 80 or 120 parameters per layer" at n = 36,864, which is 0.2% and '
    "0.3% of n; equal shares of n are equally well conditioned whatever n (Marchenko-Pastur law), "
    "equal numbers are not. Relative error of the weight: geometric means, with 95% Student-t "
    "intervals of the logarithms in brackets where there are several layers. Each seed has a layer "
    "of its own stage. Figure: (a) error in float64, (b) iterations; lines join geometric means.",
    draw,
    options=no_overrides,
    formats={"error in float64": ".1e", "error in the float32 network": ".1e"},
    claims=claims,
)
