"""Figure 2: what ill conditioning costs the paper's solvers, and bnrecon's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from bnrecon.reporting.figures import PAGE, Axes, Figure, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reporting.wording import span
from bnrecon.reproduction import intervals
from bnrecon.reproduction.intervals import count_signs, exponents, geometric_mean
from bnrecon.reproduction.parts import Decision, Decisions, only, part, read_text, sweep
from bnrecon.studies.random_features import averages
from bnrecon.studies.random_features.feature_matrices import ANY_WIDTH, COLOURS, FEATURES
from bnrecon.studies.random_features.solver_errors import LONG, SETTINGS, measure_errors

TEXT = read_text(__file__)
CHANNELS = {"smoke": (5,), "laptop": (50, 40, 30, 20, 10), "paper": (50, 40, 30, 20, 10)}
SEEDS = {"smoke": 2, "laptop": 5, "paper": 10}
EXCESS = (0, 10, 100)  # c1 - n
SAME = ("channels c0 = c2", "seeds")  # the same in all lines of the table
IDENTIFIED = 1e7  # larger condition numbers cannot be identified in float32
TITLES = {
    "lbfgs": "LBFGS, at most 2,000",
    LONG: "LBFGS, at most 50,000",
    "svd_lbfgs": "SVD, LBFGS",
    "svd_lu_lbfgs": "SVD, solve, LBFGS",
    "auto": "bnrecon",
}
PANELS = (
    ("lbfgs", "(a) LBFGS, at most 2,000 iterations"),
    (None, "(b) condition number"),
    ("svd_lbfgs", "(c) SVD, LBFGS"),
    ("svd_lu_lbfgs", "(d) SVD, solve, LBFGS"),
    (LONG, "(e) LBFGS, at most 50,000"),
    ("auto", "(f) bnrecon, in float64"),
)
STYLES = dict(zip(EXCESS, ("-", "--", ":"), strict=True))  # as in the paper
LEAST_SEEDS = 2  # the half-width shows how little two seeds tell
APART = 0.5  # offset between distributions, in channels

# The largest and worst conditioned first.
PAIRS = [(c, name) for c in EXCESS for name in FEATURES if c == 0 or name in ANY_WIDTH]
OVER: dict[Any, Any] = {"channels": CHANNELS, ("excess", "features"): PAIRS}
TASKS = sweep(measure_errors, "{channels}, {excess}, {features}", OVER, {"seeds": SEEDS})


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """The largest size: one row per distribution and excess, one column per solver."""
    lines = []
    for (label, excess), group in _largest(rows).groupby(["features", "excess"], sort=False):
        condition = geometric_mean(group["condition_number"]).mean
        note = " (not identifiable in float32)" if condition > IDENTIFIED else ""
        line = {"features": label, "channels c0 = c2": rows["channels"].max()}
        line |= {"excess c1 - n": excess, "condition number": f"{condition:.3g}{note}"}
        for solver, title in TITLES.items():
            solved = group[(group["solver"] == solver) & group["relative_rmse"].notna()]
            line[title] = _cell(solved, solver) if len(solved) else "not applicable"
        lines.append(line | {"seeds": group["seed"].nunique()})
    return pd.DataFrame(lines)


def _cell(rows: pd.DataFrame, solver: str) -> str:
    """The error, with iterations or bnrecon's choice of solver in brackets."""
    error = _mean_error(rows["relative_rmse"])
    if solver == "auto":
        return f"{error} ({', '.join(sorted(set(rows['used'])))})"
    stopped = int(rows["at_limit"].sum())
    note = f"; {stopped} of {len(rows)} at the limit" if stopped else ""
    return f"{error} ({rows['iterations'].mean():,.0f}{note})"


def _mean_error(errors: pd.Series) -> str:
    """The geometric mean of errors above 0, and how many are 0."""
    zeros = int((errors == 0).sum())
    if zeros == len(errors):
        return "0"
    mean = f"{geometric_mean(errors[errors > 0]).mean:.1e}"
    return f"{mean}, {zeros} of {len(errors)}: 0" if zeros else mean


def caption_numbers(rows: pd.DataFrame) -> dict[str, Any]:
    """The tolerance, the number of seeds and the effect of the iteration limit."""
    sizes = {"channels": rows["channels"].max(), "seeds": rows["seed"].nunique()}
    return sizes | {"tolerance": SETTINGS["auto"].tolerance, "limit": _effect_of_the_limit(rows)}


def _effect_of_the_limit(rows: pd.DataFrame) -> str:
    """Compare 2,000 and 50,000 iterations where the first limit stopped LBFGS."""
    by_run = ["features", "channels", "excess", "seed"]
    short, long = (rows[rows["solver"] == name].set_index(by_run) for name in ("lbfgs", LONG))
    stopped = short.index[short["at_limit"]]
    if stopped.empty:
        return ""
    factors = short.loc[stopped, "relative_rmse"] / long.loc[stopped, "relative_rmse"]
    iterations = long.loc[stopped, "iterations"]
    numbers = {"stopped": len(stopped), "runs": len(short)}
    numbers |= {"fewest": iterations.min(), "most": iterations.max()}
    by_excess = ", ".join(
        f"{geometric_mean(values).mean:.1f} times smaller at {excess} excess features"
        for excess, values in factors.groupby(level="excess")
    )
    return TEXT.sentence("limit", factors=by_excess, **numbers)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the paper's panels a-d, LBFGS with a larger limit, bnrecon. Float32 shares one axis."""
    figure, grid = new_figure(2, 3, (PAGE, 4.9))
    float32 = []
    for axes, (solver, title) in zip(grid.flat, PANELS, strict=True):
        label = "log10 rmse" if solver else "log10 condition number"
        axes.set(title=title, xlabel="channels c0 = c2", ylabel=label)
        axes.set_xticks(sorted(rows["channels"].unique()))
        _draw_lines(axes, rows, solver)
        if solver not in (None, "auto"):
            float32.append(axes)
    for axes in float32[1:]:
        axes.sharey(float32[0])
    zeros = rows[rows["rmse"] == 0]
    _mark_zeros(float32, zeros[zeros["solver"] != "auto"])
    _mark_zeros([grid.flat[-1]], zeros[zeros["solver"] == "auto"])
    axes, labels = figure.axes[0], list(rows["features"].unique())
    lines = [axes.plot([], [], color=COLOURS[label])[0] for label in labels]
    lines += [axes.plot([], [], STYLES[excess], color="black")[0] for excess in EXCESS]
    labels += [f"{excess} excess features" for excess in EXCESS]
    title = f"means of {rows['seed'].nunique()} seeds, 95% intervals"
    figure.legend(lines, labels, title=title, loc="outside upper center", ncols=5)
    return figure


def _draw_lines(axes: Axes, rows: pd.DataFrame, solver: str | None) -> None:
    """Draw a solver's errors above 0, or condition numbers, which all solvers share."""
    rows = rows[rows["solver"] == (solver or "auto")]
    values = rows["rmse" if solver else "condition_number"]
    rows = rows.assign(value=np.log10(values.where(values > 0))).dropna(subset="value")
    for (label, excess), group in rows.groupby(["features", "excess"], sort=False):
        line = averages.intervals_by(group, "channels", "value")
        if solver is None:  # as in the paper: no point where it cannot be identified
            line["mean"] = line["mean"].where(line["mean"] <= np.log10(IDENTIFIED))
        style: Any = {"color": COLOURS[label], "linestyle": STYLES[excess], "marker": "."}
        axes.errorbar(line.index + _aside(label), line["mean"], line["half_width"], **style)


def _aside(label: str) -> float:
    """The offset of a distribution's points from their size, so that they do not cover others."""
    names = list(COLOURS)
    return APART * (names.index(label) - (len(names) - 1) / 2)


def _mark_zeros(panels: list[Axes], zeros: pd.DataFrame) -> None:
    """Add a row named 0 below all errors, with an open circle wherever a seed's error is 0."""
    low, high = panels[0].get_ylim()
    row = low - 0.12 * (high - low)
    ticks = [tick for tick in panels[0].get_yticks() if low <= tick <= high]
    labels = [f"{tick:g}" for tick in ticks]
    for axes in panels:
        solver = PANELS[list(axes.figure.axes).index(axes)][0]
        for label, group in zeros[zeros["solver"] == solver].groupby("features", sort=False):
            x = [size + _aside(label) for size in sorted(group["channels"].unique())]
            axes.plot(x, [row] * len(x), "o", color=COLOURS[label], markerfacecolor="none")
        axes.axhline((row + low) / 2, color="grey", linewidth=0.5)
        axes.set_yticks([row, *ticks], ["rmse 0", *labels])
        axes.set_ylim(row - 0.08 * (high - low), high)


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide, where tasks exist: size, excess features, preconditioning, better features."""
    errors = rows["relative_rmse"]
    rows = rows.assign(log_error=np.log10(errors.where(errors > 0)))
    standard = rows[rows["features"].isin(ANY_WIDTH)]
    square = standard[standard["excess"] == 0]
    # A draw has one condition number, but a row per solver.
    draws = square.drop_duplicates(["features", "channels", "seed"])
    long, svd, auto = (square[square["solver"] == name] for name in (LONG, "svd_lu_lbfgs", "auto"))
    return [
        *_growth("condition", draws, "condition_number"),
        *_error_growth(long, square[square["solver"] == "lbfgs"]),
        *_excess(_largest(standard)),
        *_preconditioning(_largest(standard)),
        *_growth("preconditioned", svd, "relative_rmse", direct=_powers(auto, "relative_rmse")),
        *_better_features(_largest(rows[rows["excess"] == 0])),
    ]


def _growth(name: str, rows: pd.DataFrame, column: str, **numbers: str) -> list[Decision]:
    """At c1 = n: the trend over the size, by distribution."""
    powers = averages.powers_by_features(rows, column).values()
    if not powers:
        return []
    named = {"power": _powers(rows, column)} | averages.signs(powers) | numbers
    return [(name, intervals.decide(powers, LEAST_SEEDS), named)]


def _error_growth(long: pd.DataFrame, short: pd.DataFrame) -> list[Decision]:
    """The trend of LBFGS's error on average over the distributions, as the paper says."""
    pooled, numbers = {}, {}
    for name, rows in (("long", long), ("short", short)):
        powers = averages.powers_by_features(rows, "relative_rmse").values()
        slopes = exponents(rows[rows["relative_rmse"] > 0], "channels", "relative_rmse")
        if not powers or not slopes:
            return []
        pooled[name] = mean_interval(slopes)
        signs = averages.signs(powers)
        numbers[name] = f"{pooled[name]:.1f}"
        numbers[f"{name}_above"] = f"{signs['above']} of {signs['of']}"
    return [("error", intervals.decide([pooled["long"]], LEAST_SEEDS), numbers)]


def _powers(rows: pd.DataFrame, column: str) -> str:
    return span((one.mean for one in averages.powers_by_features(rows, column).values()), ".1f")


def _comparison(name: str, differences: list[Interval], **numbers: Any) -> list[Decision]:
    verdict = intervals.decide((-one for one in differences), LEAST_SEEDS)
    return [(name, verdict, numbers | averages.signs(differences))] if differences else []


def _largest(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["channels"] == rows["channels"].max()]


def _excess(largest: pd.DataFrame) -> list[Decision]:
    """The error of LBFGS with the most excess features minus that without any."""
    rows = largest[largest["solver"].isin(["lbfgs", LONG])]
    most, channels = rows["excess"].max(), rows["channels"].max()
    many, none = (rows[rows["excess"] == excess] for excess in (most, 0))
    differences = averages.differences_by(many, none, ["features", "solver"], "log_error")
    return _comparison("excess", differences if most else [], most=most, channels=channels)


def _preconditioning(largest: pd.DataFrame) -> list[Decision]:
    """Compare LBFGS with and without SVD, at c1 = n and a limit of 2,000 iterations."""
    longer = _against(largest[largest["excess"] > 0], "lbfgs") + _against(largest, LONG)
    return _comparison(
        "preconditioning",
        _against(largest[largest["excess"] == 0], "lbfgs"),
        channels=largest["channels"].max(),
        longer=f"{count_signs(longer)[0]} of {len(longer)}",
    )


def _against(rows: pd.DataFrame, plain: str) -> list[Interval]:
    """The error after an SVD minus that of LBFGS alone, by distribution and excess."""
    other, by = rows[rows["solver"] == plain], ["features", "excess"]
    svd = (rows[rows["solver"] == solver] for solver in ("svd_lbfgs", "svd_lu_lbfgs"))
    return [d for one in svd for d in averages.differences_by(one, other, by, "log_error")]


def _better_features(square: pd.DataFrame) -> list[Decision]:
    """Compare Ortho cond features with LBFGS alone and preconditioned standard ones."""
    alone, svd = (square[square["solver"] == name] for name in ("lbfgs", "svd_lu_lbfgs"))
    plain = alone[alone["features"] == "Ortho cond"]
    every = pd.concat([plain.assign(features=label) for label in ANY_WIDTH])
    differences = averages.differences_by(every, svd, "features", "log_error")
    positive = plain.loc[plain["relative_rmse"] > 0, "relative_rmse"]
    standard = svd[svd["features"].isin(ANY_WIDTH)].groupby("features")["relative_rmse"]
    others = [geometric_mean(some).mean for _, some in standard]
    return _comparison(
        "better",
        differences,
        channels=square["channels"].max(),
        error=geometric_mean(positive).mean if len(positive) else None,
        preconditioned=min(others, default=float("nan")),
    )


UNUSED = [TITLES["lbfgs"], TITLES["svd_lu_lbfgs"]]
EXCERPT = only("excess c1 - n", 0, drop=[*SAME, "excess c1 - n", *UNUSED])
PART = part(__file__, TASKS, summarize, draw, decide, caption_numbers, excerpt=EXCERPT)
