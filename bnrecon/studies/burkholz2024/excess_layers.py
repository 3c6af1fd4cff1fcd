"""LBFGS alone on single layers, by excess of features over n (Burkholz 2024, Sect. 3.2)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task, no_overrides
from bnrecon.reproduction.intervals import decide, geometric_mean, paired_difference
from bnrecon.reproduction.options import refuse_compared
from bnrecon.reproduction.study import read_reported
from bnrecon.solvers import solve
from bnrecon.solvers.lbfgs import MAX_ITERATIONS
from bnrecon.solvers.spec import SolverSpec
from bnrecon.studies.burkholz2024.single_layers import STAGES, TARGETS, single_layer

__all__ = ["PART"]

REPORTED = read_reported(__package__)["excess"]
# The paper's 80 and 120 features are beyond the minimum width. This is c1 - n, in percent of n.
BOUNDS = [
    100 * (REPORTED["minimum_width"] + extra - REPORTED["n"]) / REPORTED["n"]
    for extra in REPORTED["parameters"]
]
# c1 - n in percent of n; ``None`` is the minimum width n - c2 + 1.
SHARES: Mapping[str, tuple[float | None, ...]] = {
    "smoke": (20.0, 5.0, None),
    "laptop": (2.0, 1.0, 0.5, 0.2, 0.1, 0.05, None),
}
PAPERS = "paper: 80 to 120 beyond its minimum"
MINIMUM_AT = 0.02  # where the figure's logarithmic axis has the minimum width
# Seeds by width of the target; n = 9 w². 2,000 iterations take half a minute of an idle thread at
# width 32, seven minutes at width 64.
SEEDS: Mapping[str, Mapping[int, tuple[int, ...]]] = {
    "smoke": {4: (0, 1)},
    "laptop": {32: (0, 1, 2), 64: (0,)},
    "paper": {32: (0, 1, 2), 64: (0, 1, 2)},
}

SINGLE = "only one share was computed."


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """A task for each size, seed and share; large shares, which converge early, come first."""
    refuse_compared(options, {"target.width"})
    return [
        Task(
            f"width {width}, seed {seed}, {_named(share)}",
            measure,
            {"layer": STAGES[seed], "seed": seed, "share": share},
            (*TARGETS[scale], f"target.width={width}", *options),
            reads_target=True,
        )
        for width, seeds in SEEDS[scale].items()
        for seed in seeds
        for share in SHARES.get(scale, SHARES["laptop"])
    ]


def _named(share: float | None) -> str:
    return "minimum width" if share is None else f"{share:g}% more features"


def measure(layer: str, seed: int, share: float | None, options: Sequence[str]) -> pd.DataFrame:
    """One row: the error of a layer that LBFGS rebuilds from zero, in float32.

    Args:
        layer: its name in the target.
        seed: of the he_normal features.
        share: c1 - n in percent of n; ``None`` for the minimum width, n - c2 + 1.
        options: overrides of the run whose target is rebuilt.
    """
    shape = single_layer(layer, seed, 0, options).target.shape
    n = shape.equations
    excess = shape.minimum_width - n if share is None else max(1, round(share / 100 * n))
    part = single_layer(layer, seed, excess, options)
    found = solve(part.system, SolverSpec("lbfgs"))
    error, assembled = part.errors(part.system.scales(found.scale))
    report = found.report
    named = math.nan if share is None else share
    row = {"n": n, "share": named, "excess": excess, "layer": layer, "seed": seed}
    row |= {"error": error, "assembled_error": assembled, "iterations": report.iterations}
    return pd.DataFrame([row | {"at_limit": report.at_limit, "seconds": report.seconds}])


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per size and share."""
    lines = []
    for (n, excess), group in rows.groupby(["n", "excess"]):
        share = group["share"].iloc[0]
        steps = sorted(group["iterations"])
        lines.append(
            {
                "n": n,
                "c1 - n": excess,
                "share of n": "minimum width" if pd.isna(share) else f"{share:g}%",
                "layers": len(group),
                "error in float64": geometric_mean(group["error"]),
                "error in the float32 network": geometric_mean(group["assembled_error"]),
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
            middle = group.groupby("share")[column].apply(lambda v: geometric_mean(v).mean)
            axes.plot(middle.index, middle, color=colour)
            layers = group["seed"].nunique()
            label = f"n = {n:,}, {layers} layer{'s' if layers > 1 else ''}"
            places = group["share"].fillna(MINIMUM_AT)
            axes.plot(places, group[column], "o", color=colour, label=label)
    right.axhline(MAX_ITERATIONS, color="grey", linestyle=":", label="limit of iterations")
    for letter, axes in zip("ab", (left, right), strict=True):
        axes.axvspan(*BOUNDS, color="#e6e6e6", label=PAPERS)
        axes.set_xscale("log")
        shares = sorted(rows["share"].dropna().unique())
        axes.set_xticks([MINIMUM_AT, *shares], ["n - c2 + 1", *(f"{s:g}" for s in shares)])
        axes.xaxis.minorticks_off()
        axes.set_xlabel("c1 - n, % of n; leftmost: the minimum width")
        axes.set_title(f"({letter})")
    left.set_yscale("log")
    left.set_ylabel("relative error ‖W′ − W‖ / ‖W‖")
    right.set_ylim(bottom=0)
    right.set_ylabel("iterations of LBFGS")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Does a small excess of features help LBFGS, in accuracy and in speed? One claim a size."""
    sizes = list(rows.groupby("n"))
    return [
        *(_more_accurate(group, n, len(sizes)) for n, group in sizes),
        *(_faster(group, n) for n, group in sizes),
    ]


def _statement(better: str, n: int) -> str:
    return f"Gradient-based solvers are {better} with more features than n (here n = {n:,})."


def _more_accurate(rows: pd.DataFrame, n: int, sizes: int) -> Claim:
    """Whether the error is smaller at the largest share than at the smallest, paired by seed."""
    kept = rows.dropna(subset=["share"])
    few, many = (kept[kept["share"] == end] for end in (kept["share"].min(), kept["share"].max()))
    errors = pd.merge(few, many, on="seed")
    if errors.empty or kept["share"].nunique() < 2:
        return Claim("Sect. 3.2", _statement("more accurate", n), "open", SINGLE)
    factor = geometric_mean(errors["error_x"] / errors["error_y"])
    spread = ", 95% Student-t interval of the logarithms" if factor.logarithm.n > 1 else ""
    stopped = " and ".join(f"{int(own['at_limit'].sum())} of {len(own)}" for own in (few, many))
    return Claim(
        "Sect. 3.2",
        _statement("more accurate", n),
        decide([factor.logarithm]),
        f"after at most {MAX_ITERATIONS:,} iterations of LBFGS the error with "
        f"{few['share'].iloc[0]:g}% more features is {factor:.3g} times that with "
        f"{many['share'].iloc[0]:g}% (geometric mean of {factor.logarithm.n} paired by "
        f"seed{spread}; sizes compared: {sizes}). The limit of iterations stopped {stopped} of "
        "these solves, so that the factor depends on it as well.",
    )


def _faster(rows: pd.DataFrame, n: int) -> Claim:
    """Whether the largest share needs fewer iterations than the smallest one, paired by seed.

    A solve that the limit stopped needs at least as many as the limit: the differences, and so
    their mean, are at least what is computed. That may confirm and not contradict. Nothing is known
    where the largest share was stopped itself.
    """
    kept = rows.dropna(subset=["share"])
    few, many = (kept[kept["share"] == end] for end in (kept["share"].min(), kept["share"].max()))
    least = paired_difference(few, many, "iterations")
    if least is None or kept["share"].nunique() < 2:
        return Claim("Sect. 3.2", _statement("faster", n), "open", SINGLE)
    if many["at_limit"].any():
        evidence = (
            f"at the largest share the limit of iterations stopped {int(many['at_limit'].sum())} "
            f"of {len(many)} solves."
        )
        return Claim("Sect. 3.2", _statement("faster", n), "open", evidence)
    verdict = decide([least])
    if verdict == "contradicted" and few["at_limit"].any():
        verdict = "open"
    spread = " (95% Student-t interval)" if least.n > 1 else ""
    stopped = f"{int(few['at_limit'].sum())} of {len(few)} stopped by the limit"
    return Claim(
        "Sect. 3.2",
        _statement("faster", n),
        verdict,
        f"iterations of LBFGS to its own end: {_listed(many)} with {many['share'].iloc[0]:g}% more "
        f"features, at least {_listed(few)} with {few['share'].iloc[0]:g}% ({stopped}). "
        f"Difference, paired by seed, at least {least:.0f}{spread}.",
    )


def _listed(rows: pd.DataFrame) -> str:
    return ", ".join(f"{count:,}" for count in sorted(rows["iterations"]))


PART = Experiment(
    "Sect. 3.2",
    "LBFGS with a few more features than equations, layer by layer and by share of n",
    tasks,
    summary,
    "A layer of the trained relu target is rebuilt from he_normal features by LBFGS alone, in "
    f"float32, from zero, with at most {MAX_ITERATIONS:,} iterations (the paper states no limit). "
    'The paper adds "less than 80 or 120 parameters per layer" to its minimum width of '
    f"{REPORTED['minimum_width']:,} at n = {REPORTED['n']:,}: c1 - n is less than "
    f"{BOUNDS[0]:.2f}% or {BOUNDS[1]:.2f}% of n. Equal shares of n are about equally well "
    "conditioned whatever n (Marchenko-Pastur law), for shares much larger than 1/n; equal numbers "
    "are not. Relative error of the weight: geometric means, with 95% Student-t intervals of the "
    "logarithms in brackets where there are several layers. Each seed has a layer of its own "
    "stage; claims are decided at sizes with three seeds or more. Figure: (a) error in float64, "
    "(b) iterations; lines join geometric means.",
    draw,
    options=no_overrides,
    formats={"error in float64": ".1e", "error in the float32 network": ".1e"},
    claims=claims,
)
