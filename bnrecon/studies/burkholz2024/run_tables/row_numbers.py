"""The numbers of a table of runs: all for the CSV, the most informative for the page."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import pandas as pd

from bnrecon.reporting.result import Predictions, RunResult, SeedResult
from bnrecon.reporting.run_tables import evaluated_on
from bnrecon.reporting.statistics import Interval, mcnemar_below
from bnrecon.reporting.wording import span
from bnrecon.studies.burkholz2024.run_tables.row import Cell, results_of
from bnrecon.studies.burkholz2024.run_tables.verdicts import SIGNIFICANT

ERRORS = ("max. layer error", "median layer error", "max. error as assembled")
FORMATS = dict.fromkeys((*ERRORS, "max. logit difference"), ".1e") | {"smallest reserve": ".1f"}
FORMATS |= dict.fromkeys(("reported: target", "accuracy: target"), ".2f")
TARGET, PAPER = "verdict: against the target", "verdict: against the paper"
SHOWN = ["c1/n", "accuracy: target", "accuracy: rebuilt", "loss", "changed predictions"]
SHOWN += ["McNemar p", "smallest reserve", "max. layer error", "median layer error"]
SHOWN += ["max. error as assembled", "layers not converged", "most iterations"]
SHOWN += ["layers at the LBFGS limit", "features redrawn", "evaluated on"]
SHOWN += ["max. logit difference", "values outside the linear range", TARGET, PAPER]
ALIKE = ["target width", "accuracy: target"]  # details if all rows agree
TELLING = {"accuracy: target", "loss", "changed predictions", "layers not converged"}
DETAILS = {*SHOWN} - TELLING - {"max. layer error", "max. error as assembled"}


def numbers(cells: Sequence[Cell]) -> pd.DataFrame:
    """One line per row: numbers, intervals over source seeds, verdicts, the command of the run."""
    lines = [_expected(cell) | _measured(cell) for cell in cells]
    frame = pd.DataFrame(lines, dtype=object)
    last = [name for name in (TARGET, PAPER, "run", "command") if name in frame]
    return frame[[*(name for name in frame if name not in last), *last]]


def _expected(cell: Cell) -> dict[str, Any]:
    """The columns of a row that are known before its run."""
    config, reported = cell.config, cell.row.reported
    line: dict[str, Any] = {**cell.row.labels, "target width": config.target.width}
    line["training seed"] = config.train.seed
    if reported is not None:
        line["reported: target"] = reported.target
        line["reported: rebuilt"] = Interval(reported.rebuilt, reported.half_width, 3)
        loss = Interval(reported.loss, reported.half_width, 3) if cell.row.possible else None
        line |= {"reported: loss": loss, "reported: rounding": reported.rounding}
    return line


def _measured(cell: Cell) -> dict[str, Any]:
    """The columns that a row's run measured."""
    result, reported = cell.result, cell.row.reported
    if result is None:
        return {TARGET: cell.against_target, "command": cell.command}
    line: dict[str, Any] = {"accuracy: target": result.target.accuracy}
    line |= {"accuracy: rebuilt": result.accuracy, "loss": result.loss}
    if reported is not None and cell.compared:
        line["loss, reproduced minus reported"] = result.loss.mean - reported.loss
    line |= _predictions(result.seeds) | _layers(result)
    line |= {"evaluated on": evaluated_on(result), "test images": result.target.images}
    line["max. logit difference"] = result.evaluation.largest_difference_to_target
    if result.outside_linear_region:
        line["values outside the linear range"] = result.outside_linear_region
    line[TARGET] = cell.against_target
    if reported is not None:
        line[PAPER] = cell.against_paper
    return line | {"run": cell.folder.name, "command": cell.command}


def _predictions(seeds: Sequence[SeedResult]) -> dict[str, Any]:
    """Images that source and target predict differently, and McNemar's tests, of counted seeds."""
    predictions = [seed.predictions for seed in seeds if seed.predictions is not None]
    counted = {"seeds": len(seeds), "seeds counted": len(predictions)}
    if not predictions:
        return counted
    by_seed = [seed.predictions.differ if seed.predictions else "not counted" for seed in seeds]
    return counted | {
        "changed predictions": sum(seed.differ for seed in predictions),
        "of images": sum(seed.images for seed in predictions),
        "changed predictions by seed": ", ".join(map(str, by_seed)),
        "only target right": sum(seed.only_target_right for seed in predictions),
        "only rebuilt right": sum(seed.only_source_right for seed in predictions),
        "McNemar p, smallest": min(seed.p_value for seed in predictions),
        "McNemar tests": len(predictions),
        "smallest reserve": smallest_reserve(predictions),
    }


def smallest_reserve(seeds: Sequence[Predictions | None]) -> float | None:
    """The smallest reserve of seeds whose real source network did not see all images."""
    return min((seed.reserve for seed in seeds if seed and seed.reserve is not None), default=None)


def _layers(result: RunResult) -> dict[str, Any]:
    """Widths, errors and iterations of the layers of all seeds."""
    layers = result.layers
    errors = [layer.relative_error for layer in layers]
    ratios = [layer.oversampling for layer in layers]
    return {
        "n, largest": max(layer.equations for layer in layers),
        "c1/n, smallest": min(ratios),
        "c1/n, largest": max(ratios),
        "features redrawn": result.redrawn,
        "max. layer error": max(errors),
        "median layer error": statistics.median(errors),
        "max. error as assembled": result.largest_assembled_error,
        "most iterations": result.iterations,
        "layers at the LBFGS limit": at_limit(result),
        "layers not converged": len(result.unconverged),
        "layers": len(layers),
    }


def at_limit(result: RunResult) -> int | None:
    """The number of layers whose LBFGS ended at its iteration limit; ``None`` without LBFGS."""
    ended = [layer.solution.at_limit for layer in result.layers if "lbfgs" in layer.solver]
    return sum(ended) if ended else None


def summarize(cells: Sequence[Cell]) -> pd.DataFrame:
    """The table for readers: no empty columns, and the paper's digits as printed."""
    return without_empty(pd.DataFrame(list(map(_summary, cells)), dtype=object))


def excerpt(summary: pd.DataFrame) -> pd.DataFrame:
    """The most informative columns of ``summarize``."""
    alike = [name for name in ALIKE if name in summary and summary[name].nunique(dropna=False) == 1]
    return summary[[name for name in summary if name not in {*DETAILS, *alike}]]


def _summary(cell: Cell) -> dict[str, Any]:
    reported, line = cell.row.reported, _measured(cell)
    start: dict[str, Any] = {**cell.row.labels, "target width": cell.config.target.width}
    if reported is not None:
        start |= {"reported: target": reported.target, "reported: rebuilt": reported.text}
    if cell.result is None:
        return start | {TARGET: line[TARGET]}
    limited, layers = line["layers at the LBFGS limit"], line["layers"]
    line |= {
        "c1/n": oversampling([cell]),
        "changed predictions": changed_predictions([cell]),
        "McNemar p": mcnemar_p([cell]),
        "layers not converged": f"{line['layers not converged']} of {layers}",
        "most iterations": line["most iterations"] or None,
        "layers at the LBFGS limit": None if limited is None else f"{limited} of {layers}",
        "features redrawn": line["features redrawn"] or None,
    }
    return start | {name: line.get(name) for name in SHOWN}


def mcnemar_p(cells: Sequence[Cell]) -> str | None:
    """McNemar's p; of several tests, the smallest and their number.

    For several rows, also how many are below 0.05, and how many would be by chance.
    """
    counted = _counted(cells)
    if not counted:
        return None
    values = [seed.p_value for seed in counted]
    notes = [f"smallest of {len(values)}"] if len(values) > 1 else []
    if len(cells) > 1:
        discordant = [seed.only_target_right + seed.only_source_right for seed in counted]
        chance = sum(mcnemar_below(SIGNIFICANT, images) for images in discordant)
        below = sum(p < SIGNIFICANT for p in values)
        notes.append(f"{below} below {SIGNIFICANT}, by chance {chance:.2g}")
    return f"{min(values):.2g}" + (f" ({'; '.join(notes)})" if notes else "")


def oversampling(cells: Sequence[Cell]) -> str | None:
    """The range of c1/n over the layers of finished rows."""
    ratios = [layer.oversampling for result in results_of(cells) for layer in result.layers]
    return span(ratios, ".3f") if ratios else None


def changed_predictions(cells: Sequence[Cell]) -> str | None:
    """Images that sources predict differently from their target, of those compared."""
    counted, seeds = _counted(cells), sum(len(result.seeds) for result in results_of(cells))
    if not counted:
        return "not counted" if seeds else None
    text = f"{sum(seed.differ for seed in counted):,} of {sum(seed.images for seed in counted):,}"
    return text if len(counted) == seeds else f"{text} ({len(counted)} of {seeds} seeds counted)"


def _counted(cells: Sequence[Cell]) -> list[Predictions]:
    """The counted predictions of all finished seeds."""
    seeds = [seed.predictions for result in results_of(cells) for seed in result.seeds]
    return [seed for seed in seeds if seed is not None]


def without_empty(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame without empty columns."""
    filled = frame.notna() & (frame != "")
    return frame.loc[:, filled.any()]
