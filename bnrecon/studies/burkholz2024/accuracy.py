"""Errors of LU, LBFGS and refinement by a system's size (Burkholz 2024, Sect. 3.1)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch

from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.operators.system import Scales, System
from bnrecon.reporting.figures import PAGE, PALETTE, Axes, Figure, draw_legend, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction import intervals
from bnrecon.reproduction.parts import Decision, Decisions, Task, part, read_text, refuse_compared
from bnrecon.runtime.hardware import exact_float32
from bnrecon.runtime.precision import FLOAT32
from bnrecon.solvers.base import Answer
from bnrecon.solvers.dense import approximate_inverse, preconditioned_gmres
from bnrecon.solvers.factorization import by_lapack
from bnrecon.solvers.lbfgs import MAX_ITERATIONS, PYTORCHS, minimize, minimize_weight_error
from bnrecon.solvers.spec import SolverSpec
from bnrecon.studies.burkholz2024.layers import STAGES, TARGETS, SingleLayer, single_layer

LU, LBFGS, LBFGS_IN_FLOAT64, REFINED = "LU", "LU, LBFGS", "LU, LBFGS in float64", "refined"
DEFAULTS = "LU, LBFGS with PyTorch's settings"
LITERAL = "the same on the composed weights"
STEPS = (LU, DEFAULTS, LITERAL, LBFGS, LBFGS_IN_FLOAT64, REFINED)
Solutions: TypeAlias = Iterator[tuple[str, Answer, float]]  # step, solution, seconds
SVD_EQUATIONS = 2304  # most equations for singular values and LBFGS in float64
PAPERS_SIZES = (36_864, 90_000)  # equations of a layer in targets of width 64 and 100
GROWTH = 2.0  # factor of the weight error between these two
TEXT = read_text(__file__)
MARKERS = dict(zip(STEPS, "os^vDX", strict=True))
COLOURS = dict(zip(STEPS, (*PALETTE[1:3], PALETTE[5], *PALETTE[3:5], PALETTE[0]), strict=True))
WIDTHS = {"smoke": (4, 6), "laptop": (16, 32, 64), "paper": (16, 32, 64)}
LIMITS = {"smoke": 50, "laptop": MAX_ITERATIONS, "paper": MAX_ITERATIONS}
# Each seed has its layer, so a size has as many independent systems as seeds.
LAYERS = {"smoke": STAGES[:2], "laptop": STAGES, "paper": STAGES}


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """Three tasks for each size and seed, small sizes first; two use PyTorch's settings."""
    refuse_compared(options, {"target.width"})
    kinds: list[tuple[str, Callable[..., pd.DataFrame], dict[str, int]]] = [
        ("", measure, {"limit": LIMITS[scale]}),
        (", PyTorch's settings", measure_defaults, {}),
        (", composed weights", measure_literal, {}),
    ]
    return [
        Task(
            f"width {width}, seed {seed}{name}",
            function,
            {"layer": layer, "seed": seed, **arguments},
            (*TARGETS[scale], f"target.width={width}", *options),
            reads_target=True,
        )
        for width in WIDTHS[scale]
        for name, function, arguments in kinds
        for seed, layer in enumerate(LAYERS[scale])
    ]


def measure(layer: str, seed: int, limit: int, options: Sequence[str]) -> pd.DataFrame:
    """One row per step of solving a layer's system.

    ``error`` is ‖W' - W‖ / ‖W‖ composed in float64, ``assembled_error`` composed in float32,
    ``cancellation`` ‖outer ∘ |M| |inner|‖ / ‖W‖, the worst factor on float32's rounding.

    Args:
        layer: the layer's name in the target.
        seed: the seed of the he_normal features, of minimum width.
        limit: the maximum of LBFGS iterations.
        options: overrides of the run whose target is rebuilt.
    """
    single = single_layer(layer, seed, None, options)
    solutions = _solutions(single.system, SolverSpec("lu_lbfgs", max_iterations=limit))
    return _rows(single, solutions, {"layer": layer, "seed": seed, "limit": limit})


def measure_defaults(layer: str, seed: int, options: Sequence[str]) -> pd.DataFrame:
    """One row for LBFGS with PyTorch's settings, on the mean squared error.

    ``lu_error`` is the error of its start, LU. The other arguments and columns are those of
    ``measure``.
    """
    single = single_layer(layer, seed, None, options)
    labels = {"layer": layer, "seed": seed, "limit": PYTORCHS.iterations}
    solutions = _solutions(single.system, SolverSpec("lu_lbfgs_defaults"))
    rows = _rows(single, solutions, labels).set_index("step")
    return rows.loc[[DEFAULTS]].assign(lu_error=rows.loc[LU, "error"]).reset_index()


def measure_literal(layer: str, seed: int, options: Sequence[str]) -> pd.DataFrame:
    """One row for LBFGS with PyTorch's settings on the composed weights, from LU's scales.

    Arguments and columns are those of ``measure_defaults``.
    """
    single = single_layer(layer, seed, None, options)
    system, spec = single.system, SolverSpec("lu_lbfgs_defaults")
    _, lu, _ = next(_solutions(system, spec))
    start = system.scales(lu.x.double())
    started = time.perf_counter()
    with exact_float32():
        ended, iterations = minimize_weight_error(system, start, spec)
    scales = Scales(ended.inner.double(), ended.outer.double())
    labels = {"layer": layer, "seed": seed, "limit": PYTORCHS.iterations}
    row = _labels(single, labels) | {"step": LITERAL, **_errors(single, scales)}
    row |= {"iterations": iterations, "at_limit": iterations >= PYTORCHS.iterations}
    row |= {"seconds": time.perf_counter() - started, "lu_error": single.errors(start)[0]}
    return pd.DataFrame([row])


def _rows(single: SingleLayer, solutions: Solutions, labels: Mapping[str, Any]) -> pd.DataFrame:
    common, rows = _labels(single, labels), []
    for step, answer, seconds in solutions:
        row = {"step": step, **_errors(single, single.system.scales(answer.x.double()))}
        row |= {"iterations": answer.iterations, "at_limit": answer.at_limit, "seconds": seconds}
        rows.append(common | row)
    return pd.DataFrame(rows)


def _labels(single: SingleLayer, labels: Mapping[str, Any]) -> dict[str, Any]:
    """Add a small system's condition and smallest singular value, NaN for others."""
    shape, operator = single.target.shape, single.system.operator
    largest = smallest = math.nan
    if operator.shape[0] <= SVD_EQUATIONS:
        values = torch.linalg.svdvals(operator.dense())
        largest, smallest = float(values[0]), float(values[-1])
    spectrum = {"condition": largest / smallest, "smallest_singular_value": smallest}
    return {"n": shape.equations, "width": shape.minimum_width, **labels, **spectrum}


def _errors(single: SingleLayer, scales: Scales) -> dict[str, float]:
    (error, assembled), matrix = single.errors(scales), single.system.matrix
    if not isinstance(matrix, KhatriRao):
        raise TypeError("the features have a pattern")
    sizes = KhatriRao(matrix.transposed.abs(), matrix.first.abs(), matrix.precision)
    inner, outer = sizes.matvec(scales.inner.abs()), scales.outer.abs()
    table = inner.reshape(len(outer), -1) * outer[:, None]
    cancellation = float(table.norm() / single.system.weight.norm())
    return {"error": error, "assembled_error": assembled, "cancellation": cancellation}


def _solutions(system: System, spec: SolverSpec) -> Solutions:
    """Step, solution and seconds of ``torch.linalg.solve``'s float32 LU and the later steps."""
    operator, rhs = system.operator.to(FLOAT32), system.rhs.float()
    products, exact = (operator.matvec, operator.rmatvec), system.operator
    with exact_float32():
        started = time.perf_counter()
        factors = by_lapack(operator.dense())
        start = factors.solve(rhs[:, None])[:, 0]
        yield LU, Answer(start, 0), time.perf_counter() - started
        if spec.name == "lu_lbfgs_defaults":
            yield _timed(DEFAULTS, lambda: minimize(*products, rhs, start, spec, PYTORCHS))
            return
        yield _timed(LBFGS, lambda: minimize(*products, rhs, start, spec))
        if len(rhs) <= SVD_EQUATIONS:
            products, rhs, start = (exact.matvec, exact.rmatvec), system.rhs, start.double()
            yield _timed(LBFGS_IN_FLOAT64, lambda: minimize(*products, rhs, start, spec))
        refined, inverse = SolverSpec("refined"), approximate_inverse(exact.matvec, factors)
        yield _timed(REFINED, lambda: preconditioned_gmres(system, refined, inverse))


def _timed(step: str, solve: Callable[[], Answer]) -> tuple[str, Answer, float]:
    started = time.perf_counter()
    answer = solve()
    return step, answer, time.perf_counter() - started


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per size and step: geometric means with intervals."""
    lines = []
    order = rows.assign(step=pd.Categorical(rows["step"], STEPS))
    for (n, width, step), group in order.groupby(["n", "width", "step"], observed=True):
        steps, limited = group["iterations"], int(group["at_limit"].sum())
        line = {"n": n, "c1 = n - c2 + 1": width, "step": step, "systems": len(group)}
        for column, title in zip(("error", "assembled_error"), ERRORS, strict=True):
            line[title] = intervals.geometric_mean(group[column])
        line["cancellation"] = intervals.geometric_mean(group["cancellation"])
        iterates = step != LU
        line["iterations"] = f"{steps.min():,} to {steps.max():,}" if iterates else ""
        line["stopped by the limit"] = f"{limited} of {len(group)}" if iterates else ""
        lines.append(line)
    return pd.DataFrame(lines)


def caption_numbers(rows: pd.DataFrame) -> dict[str, Any]:
    """The number of systems and their condition."""
    small = rows.drop_duplicates(["n", "seed"]).dropna(subset=["condition"])
    condition, smallest = small["condition"], small["smallest_singular_value"]
    words = TEXT.sentence(
        "condition",
        sizes=" and ".join(f"{n:,}" for n in sorted(small["n"].unique())),
        condition=(condition.min(), condition.max()),
        smallest=(smallest.min(), smallest.max()),
    )
    systems = rows.groupby("n")["seed"].nunique().max()
    condition = f" {words}" if len(small) else ""
    return {"limit": rows["limit"].max(), "systems": systems, "condition": condition}


def draw(rows: pd.DataFrame) -> Figure:
    """Error against n after each step, as solved and in the float32 network."""
    figure, both = new_figure(1, 2, (PAGE, 3.3))
    panels = {"error": "in float64, as solved", "assembled_error": "in the float32 network"}
    for letter, axes, (column, title) in zip("ab", both, panels.items(), strict=True):
        for number, (step, colour) in enumerate(COLOURS.items()):
            of_step = rows[rows["step"] == step]
            means = of_step.groupby("n")[column].apply(intervals.geometric_mean)
            beside = 1.06 ** (number - 2)  # so that intervals do not cover each other
            _plot(axes, list(beside * means.index), list(means), step, colour)
            style = {"color": colour, "markersize": 3, "alpha": 0.5}
            axes.plot(beside * of_step["n"], of_step[column], ".", **style)
        axes.set(xscale="log", yscale="log", title=f"({letter}) {title}")
        sizes = sorted(rows["n"].unique())
        axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
        axes.xaxis.minorticks_off()
        axes.set_xlabel("equations n of a layer; c1 = n - c2 + 1")
    both[0].set_ylabel("relative error ‖W′ − W‖ / ‖W‖")
    title = f"up to {rows.groupby('n')['seed'].nunique().max()} systems a size, 95% intervals"
    draw_legend(figure, 3, "lower", title=title, title_fontsize=7)
    return figure


def _plot(
    axes: Axes, sizes: list[float], means: list[intervals.GeometricMean], label: str, colour: str
) -> None:
    middle = np.array([mean.mean for mean in means])
    ends = [mean.ends if mean.logarithm.n > 1 else (mean.mean, mean.mean) for mean in means]
    style: dict[str, Any] = {"marker": MARKERS[label], "color": colour, "label": label}
    axes.errorbar(sizes, middle, np.abs(np.transpose(ends) - middle), capsize=3, **style)


def decide(rows: pd.DataFrame) -> Decisions:
    """Does LU get worse with size, does LBFGS help, and does the rest grow?"""
    return [_accumulation(rows), *_reductions(rows), *_by_defaults(rows), _growth(rows)]


def _accumulation(rows: pd.DataFrame) -> Decision:
    of_step = rows[rows["step"] == LU]
    slopes = intervals.exponents(of_step, "n", "error")
    if not slopes:
        return "accumulation, one size", "undecided", {}
    growth = mean_interval(slopes)
    return "accumulation", intervals.decide([growth]), {"slopes": growth, "sizes": _sizes(of_step)}


def _reductions(rows: pd.DataFrame) -> list[Decision]:
    """One claim per size, from pairs of errors of the same system."""
    errors = rows.pivot_table(index=["n", "seed"], columns="step", values="error")
    if not {LU, LBFGS} <= {*errors.columns}:
        return []
    decisions: list[Decision] = []
    for n, ratios in (errors[LU] / errors[LBFGS]).groupby(level="n"):
        factor = intervals.geometric_mean(ratios)
        numbers = {"n": n, "factor": factor, "systems": factor.logarithm.n}
        decisions.append(("reduction", intervals.decide([factor.logarithm]), numbers))
    return decisions


def _by_defaults(rows: pd.DataFrame) -> list[Decision]:
    """Do PyTorch's settings reduce the error, too? One claim, and one per size by the letter."""
    decisions: list[Decision] = []
    for name, step, by in (("defaults", DEFAULTS, "step"), ("literal", LITERAL, "n")):
        for _, group in rows[rows["step"] == step].groupby(by):
            factors = group["lu_error"] / group["error"]
            factor = intervals.geometric_mean(factors)
            verdict = intervals.decide([factor.logarithm - math.log(2)])
            numbers = {"factor": factor, "systems": factor.logarithm.n, "sizes": _sizes(group)}
            numbers |= {"steps": group["iterations"].max(), "halved": int((factors > 2).sum())}
            decisions.append((name, verdict, numbers))
    return decisions


def _growth(rows: pd.DataFrame) -> Decision:
    """Extrapolate, which cannot contradict what the paper says about measured accuracies."""
    small, large = PAPERS_SIZES
    numbers: dict[str, Any] = {"limit": GROWTH, "small": small, "large": large}
    of_step = rows[rows["step"] == LBFGS]
    slopes = intervals.exponents(of_step, "n", "assembled_error")
    if not slopes:
        return "growth, one size", "undecided", numbers
    growth = intervals.geometric_mean((large / small) ** slope for slope in slopes)
    below = intervals.decide([math.log(GROWTH) - growth.logarithm])
    numbers |= {"growth": growth, "sizes": _sizes(of_step), "seeds": len(slopes)}
    return "growth", "confirmed" if below == "confirmed" else "undecided", numbers


def _sizes(rows: pd.DataFrame) -> str:
    return ", ".join(f"{n:,}" for n in sorted(rows["n"].unique()))


def excerpt(table: pd.DataFrame) -> pd.DataFrame:
    """The solutions' errors of the smallest and the largest systems."""
    ends = table["n"].isin([table["n"].min(), table["n"].max()])
    return table[ends & (table["step"] != LBFGS_IN_FLOAT64)][["n", "step", ERRORS[0]]]


ERRORS = ("error in float64", "error in the float32 network")
FORMATS = dict.fromkeys(ERRORS, ".1e") | {"cancellation": ".0e"}
PART = part(
    __file__, tasks, summarize, draw, decide, caption_numbers, formats=FORMATS, excerpt=excerpt
)
