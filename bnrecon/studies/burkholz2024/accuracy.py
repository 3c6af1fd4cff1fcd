"""Why the paper's solver loses accuracy: LU, LBFGS and float32 by size (Burkholz 2024, Sect. 3.1).

At minimum width, from he_normal features, a layer's system is solved by the float32 LU, by LBFGS
from there as in the paper, and by the same LU factors corrected in float64 (``refined``). Each
solution's rebuilt weight is composed in float64, which shows the error of the solution, and in
float32 as the network does.
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Experiment, Task, no_overrides
from bnrecon.reproduction.intervals import GeometricMean, geometric_mean
from bnrecon.reproduction.options import refuse_compared
from bnrecon.solvers.lbfgs import MAX_ITERATIONS
from bnrecon.studies.burkholz2024.accuracy_claims import claims
from bnrecon.studies.burkholz2024.accuracy_steps import (
    LBFGS,
    LBFGS_IN_FLOAT64,
    LU,
    REFINED,
    STEPS,
    measure,
    measure_defaults,
)
from bnrecon.studies.burkholz2024.single_layers import STAGES, TARGETS

__all__ = ["PART"]

COLOURS = dict(zip(STEPS, (PALETTE[1], PALETTE[2], *PALETTE[3:5], PALETTE[0]), strict=True))
WIDTHS = {"smoke": (4, 6), "laptop": (16, 32, 64), "paper": (16, 32, 64)}
# A seed's layer, so that a size has as many independent systems as seeds.
LIMITS = {"smoke": 50, "laptop": MAX_ITERATIONS, "paper": MAX_ITERATIONS}
LAYERS = {"smoke": STAGES[:2], "laptop": STAGES, "paper": STAGES}


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """Two tasks for each size and seed, small sizes first: PyTorch's settings have their own."""
    refuse_compared(options, {"target.width"})
    limits = {"limit": LIMITS[scale]}
    return [
        Task(
            f"width {width}, seed {seed}{name}",
            function,
            {"layer": layer, "seed": seed, **arguments},
            (*TARGETS[scale], f"target.width={width}", *options),
            reads_target=True,
        )
        for width in WIDTHS[scale]
        for name, function, arguments in (
            ("", measure, limits),
            (", PyTorch's settings", measure_defaults, {}),
        )
        for seed, layer in enumerate(LAYERS[scale])
    ]


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per size and step: geometric means with intervals."""
    lines = []
    order = rows.assign(step=pd.Categorical(rows["step"], STEPS))
    for (n, width, step), group in order.groupby(["n", "width", "step"], observed=True):
        steps, limited = group["iterations"], int(group["at_limit"].sum())
        iterates = step != LU
        lines.append(
            {
                "n": n,
                "c1 = n - c2 + 1": width,
                "step": step,
                "systems": len(group),
                "error in float64": geometric_mean(group["error"]),
                "error in the float32 network": geometric_mean(group["assembled_error"]),
                "cancellation": geometric_mean(group["cancellation"]),
                "iterations": f"{steps.min():,} to {steps.max():,}" if iterates else "",
                "stopped by the limit": f"{limited} of {len(group)}" if iterates else "",
            }
        )
    return pd.DataFrame(lines)


def caption(rows: pd.DataFrame) -> str:
    """What is shown, how ill-conditioned the systems are, and what each step contributes."""
    count = rows.groupby("n")["seed"].nunique().max()
    known = rows.drop_duplicates(["n", "seed"]).dropna(subset=["condition"])
    condition = ""
    if len(known):
        condition = (
            f" At n = {_listed(known['n'].unique())} the condition number is "
            f"{known['condition'].min():.0e} to {known['condition'].max():.0e}, the smallest "
            f"singular value {known['smallest_singular_value'].min():.0e} to "
            f"{known['smallest_singular_value'].max():.0e}."
        )
    shares = [
        f"{_share(rows[rows['n'] == n]):.2g} at n = {n:,}" for n in sorted(rows["n"].unique())
    ]
    return (
        "Relative error ‖W' - W‖ / ‖W‖ of a layer that is rebuilt at minimum width from he_normal "
        "features. LU: torch.linalg.solve in float32. LU, LBFGS: the paper's solver, from that "
        f"solution, at most {rows['limit'].max():,} iterations; it "
        f"ended by itself in {_ended(rows, LBFGS)}. The paper prints no settings of LBFGS. These "
        "are bnrecon's: strong Wolfe line search, tolerances of 1e-12 and 1e-15, and the squared "
        "error in units of the right-hand side's, so that float32 alone ends it. With PyTorch's "
        "settings: the mean squared error, as the paper has it, and nothing else said: lr 1, no "
        "line search, 20 iterations, tolerances of 1e-7 (gradient) and 1e-9 (step). LU, LBFGS in "
        "float64: bnrecon's settings with products in float64, for the smallest systems only; it "
        "ended by itself in "
        f"{_ended(rows, LBFGS_IN_FLOAT64)}. Refined: the LU's factors, corrected in float64 by "
        "GMRES. Error in float64: the weight is composed in float64, so that the error is the "
        "solution's. Error in the float32 network: scales rounded to float32, weight composed in "
        "float32. Cancellation: ‖outer ∘ |M| |inner|‖ / ‖W‖. Geometric means, with 95% Student-t "
        f"intervals of the logarithms in brackets, over up to {count} systems a size: a 3x3 layer "
        "of each stage of the trained relu targets, with a features seed of its own. "
        "Claims are decided with three systems or seeds or more."
        f"{condition} Share of float32 itself: the error of the refined solution in the "
        "float32 network, divided by that of the paper's solution there: "
        f"{', '.join(shares)} (ratio of geometric means)."
    )


def _ended(rows: pd.DataFrame, step: str) -> str:
    own = rows[rows["step"] == step]
    return f"{int((~own['at_limit'].astype(bool)).sum())} of {len(own)} systems"


def _listed(sizes: Sequence[int]) -> str:
    return " and ".join(f"{n:,}" for n in sorted(sizes))


def _share(rows: pd.DataFrame) -> float:
    """The refined solution's error in the float32 network, over that of LU and LBFGS."""
    errors = rows.groupby("step")["assembled_error"].apply(lambda e: geometric_mean(e).mean)
    return float(errors[REFINED] / errors[LBFGS])


def draw(rows: pd.DataFrame) -> Figure:
    """Error against n after each step, as solved and in the float32 network."""
    figure, both = new_figure(1, 2, (PAGE, 3.3))
    panels = {"error": "in float64, as solved", "assembled_error": "in the float32 network"}
    for letter, axes, (column, title) in zip("ab", both, panels.items(), strict=True):
        for place, (step, colour) in enumerate(COLOURS.items()):
            own = rows[rows["step"] == step]
            means = own.groupby("n")[column].apply(geometric_mean)
            beside = 1.06 ** (place - 2)  # so that intervals do not cover each other
            _plot(axes, list(beside * means.index), list(means), step, colour)
            axes.plot(beside * own["n"], own[column], ".", color=colour, markersize=3, alpha=0.5)
        axes.set_xscale("log")
        axes.set_yscale("log")
        sizes = sorted(rows["n"].unique())
        axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
        axes.xaxis.minorticks_off()
        axes.set_xlabel("equations n of a layer; c1 = n - c2 + 1")
        axes.set_title(f"({letter}) {title}")
    both[0].set_ylabel("relative error ‖W′ − W‖ / ‖W‖")
    count = rows.groupby("n")["seed"].nunique().max()
    figure.legend(
        *both[1].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        title=f"up to {count} systems a size, 95% intervals",
        title_fontsize=7,
    )
    return figure


def _plot(
    axes: Axes, sizes: list[float], means: list[GeometricMean], label: str, colour: str
) -> None:
    middle = [mean.mean for mean in means]
    ends = [mean.ends if mean.logarithm.n > 1 else (mean.mean, mean.mean) for mean in means]
    below = [mean - low for mean, (low, _) in zip(middle, ends, strict=True)]
    above = [high - mean for mean, (_, high) in zip(middle, ends, strict=True)]
    axes.errorbar(sizes, middle, [below, above], marker="o", capsize=3, color=colour, label=label)


PART = Experiment(
    "Sect. 3.1",
    "Why the paper's solver loses accuracy: LU, LBFGS and float32 by size",
    tasks,
    summary,
    caption,
    draw,
    options=no_overrides,
    formats={
        "error in float64": ".1e",
        "error in the float32 network": ".1e",
        "cancellation": ".0e",
    },
    claims=claims,
)
