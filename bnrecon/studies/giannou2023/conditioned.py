"""Beyond the paper: does SGD reach the construction where the features are well conditioned?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pandas as pd
import torch

from bnrecon.construction.random_linear import khatri_rao
from bnrecon.features import LayerShape, draw
from bnrecon.reporting.figures import PAGE, Figure, draw_legend, new_figure
from bnrecon.reporting.wording import span
from bnrecon.reproduction.parts import Decisions, join, only, part, sweep, table
from bnrecon.studies.giannou2023 import teacher
from bnrecon.studies.giannou2023.batched_training import draw_start, train_sources, train_students
from bnrecon.studies.giannou2023.comparison import decide_by_runs, draw_errors, format_errors

FEATURES = {
    "random": "scales of random features",
    "ortho_cond": "scales of Ortho cond features",
    "id_cond": "scales of ID cond features",
    "id_cond_drawn": "scales of ID cond, from a dense start",
    "dense": "weights of a dense network",
}
OPENING = 4.0  # deviations of an inner ReLU's input: almost no sample closes it
# Pairs of trainings (features, start); the claim: the first has the smaller error.
PAIRS = {
    "start": (("random", OPENING), ("random", 0.0)),
    "start_ortho": (("ortho_cond", OPENING), ("ortho_cond", 0.0)),
    "dense": (("dense", 0.0), ("random", OPENING)),
    "conditioning": (("ortho_cond", OPENING), ("random", OPENING)),
    "conditioning_closed": (("ortho_cond", 0.0), ("random", 0.0)),
    "weights": (("id_cond_drawn", OPENING), ("dense", 0.0)),
    "weights_random": (("id_cond_drawn", OPENING), ("random", OPENING)),
}
OPTIMIZER = ["learning_rate", "schedule"]
CLAIMS = ("start", "dense", "conditioning", "weights")


def compare_features(
    side: int, scale: str, opening: float = 0.0, drawn: bool = False
) -> pd.DataFrame:
    """One row per type of network and run.

    ``condition`` is the 2-norm condition number of the run's M, missing for ``dense``, whose
    weights are trained.

    Args:
        side: d.
        scale: ``smoke``, ``laptop`` or ``paper``: samples, epochs, runs.
        opening: the inner ReLUs' initial shifts; at 0, the dense network is trained, too.
        drawn: train only the scales of ID cond features, which are a dense network's weights, from
            that network's initial values. From scales of 1, all units are equal and stay so.
    """
    sizes = teacher.SIZES[scale]
    runs = list(range(sizes.runs))
    samples = teacher.draw_samples(side, sizes, runs)
    variance = samples.y["test"].double().var(dim=1).tolist()
    kinds = ["id_cond_drawn"] if drawn else ["random", "ortho_cond", "id_cond"]
    frames = []
    for kind in kinds if opening else [*kinds, "dense"]:
        conditions = [float("nan")] * len(runs)
        if kind == "dense":
            trained = train_students(side, runs, samples, sizes)[0]
        else:
            first, second = _frozen(kind.removesuffix("_drawn"), side, runs)
            start = draw_start(runs, side).flatten(1) if drawn else None
            options: dict[str, Any] = {"opening": opening, "scales": start, "name": kind}
            trained = train_sources(first, second, samples, sizes, **options)
            products = (khatri_rao(v, w) for w, v in zip(first, second, strict=True))
            conditions = [float(torch.linalg.cond(product)) for product in products]
        columns = {"features": kind, "side": side, "run": runs, "mse": trained.errors}
        columns |= {"variance": variance, "condition": conditions, **asdict(trained.chosen)}
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True).assign(opening=opening)


def _frozen(kind: str, side: int, runs: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """W (S, d², d) and V (S, d, d²) of these features."""
    if kind == "random":
        return teacher.draw_source(side, side**2, 1.0, runs)
    shape = LayerShape(side, side)
    drawn = [draw(kind, shape, shape.equations, run, 0).weights() for run in runs]
    first = torch.stack([a.double() for a, _ in drawn])
    return first, torch.stack([b.double().reshape(side, side**2) for _, b in drawn])


def with_opening(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with their shifts' start: 0 by default, missing for dense networks."""
    opening = rows["opening"] if "opening" in rows else pd.Series(0.0, rows.index)
    return rows.assign(opening=opening.fillna(0.0).where(rows["features"] != "dense"))


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per teacher width, type of features and start of the shifts."""
    columns: dict[str, Any] = {
        "teacher width d": "side",
        "trained": lambda group: FEATURES[group["features"].iloc[0]],
        "shifts start at": lambda group: _number(group["opening"]),
        "condition": lambda group: _number(group["condition"]),
        "test MSE": lambda group: format_errors(group["mse"]),
        "share of the variance": lambda group: f"{(group['mse'] / group['variance']).median():.3f}",
        "optimizer": lambda group: "{:g}, {}".format(*group[OPTIMIZER].iloc[0]),
    }
    rows = with_opening(rows)
    order = 2 * rows["features"].map(list(FEATURES).index) + (rows["opening"] > 0)
    return table(rows.assign(order=order), ["side", "order"], **columns)


def _number(values: pd.Series) -> str:
    return "" if values.isna().all() else f"{values.mean():.2g}"


def draw_starts(rows: pd.DataFrame) -> Figure:
    """Draw a panel per start of the shifts, with the dense network in both."""
    rows = with_opening(rows)
    figure, panels = new_figure(1, 2, (PAGE, 3.1))
    for axes, opening in zip(panels, (0.0, OPENING), strict=True):
        shown = rows[rows["opening"].fillna(opening) == opening]
        draw_errors(axes, shown, column="features", labels=FEATURES)
        axes.set_title(f"shifts start at {opening:g}")
    top = max(axes.get_ylim()[1] for axes in panels)
    for axes in panels:
        axes.set_ylim(top=top)
    draw_legend(figure, 2)
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Compare the errors of two trainings run by run, where both exist."""
    rows = with_opening(rows).fillna({"opening": 0.0})
    errors = rows.pivot_table("mse", ["side", "run"], ["features", "opening"]).dropna()
    if not {column for pair in PAIRS.values() for column in pair} <= set(errors):
        return {}, {}
    counts = {name: int((errors[a] < errors[b]).sum()) for name, (a, b) in PAIRS.items()}
    runs = len(errors)
    verdicts = {name: decide_by_runs(counts[name], runs) for name in CLAIMS}
    medians = errors.groupby("side").median()
    numbers = {name: f"{count} of {runs}" for name, count in counts.items()}
    numbers |= {"shares": span(medians["random", OPENING] / medians["random", 0.0], ".2f")}
    numbers["gain"] = (errors["random", OPENING] / errors["dense", 0.0]).min()
    for name, pair in (("by_side", "conditioning"), ("by_side_closed", "conditioning_closed")):
        first, second = PAIRS[pair]
        by_side = (errors[first] < errors[second]).groupby(level="side").sum()
        numbers[name] = ", ".join(map(str, by_side))
    return verdicts, numbers


VARIANTS: dict[str, dict[str, Any]] = {
    "d = {side}": {},
    f"d = {{side}}, shifts from {OPENING:g}": {"opening": OPENING},
    "d = {side}, scales drawn": {"opening": OPENING, "drawn": True},
}
SWEEPS = (
    sweep(compare_features, name, {"side": teacher.VARIANT_SIDES}, teacher.BY_SCALE | start)
    for name, start in VARIANTS.items()
)
EXCERPT = only("teacher width d", 5, 20, drop=["share of the variance", "optimizer"])
PART = part(__file__, join(*SWEEPS), summarize, draw_starts, decide, excerpt=EXCERPT)
