"""How two runs differ: options, results, predictions, layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from bnrecon.config.schema import VOLATILE
from bnrecon.reconstruction.report import LayerReport
from bnrecon.reporting import tables
from bnrecon.reporting.option_differences import NOT_RECORDED, differing_options
from bnrecon.reporting.result import Predictions, RunResult
from bnrecon.reporting.run_tables import by_name, description, evaluated_on, target_accuracy
from bnrecon.reporting.statistics import mean_interval

CELL = 36  # characters of a value in a line
NAMES = ("A", "B")
FORMATS = {"ratio B/A": ".2g", **{f"error {name}": ".1e" for name in NAMES}}
INTERVALS = (
    "n: test images of a target, seeds of sources; ±: 95% Student-t intervals over the seeds."
)
COUNTS = (
    "Results hold counts, not predictions: --predict computes from saved sources\nwhich images A "
    "and B predict differently."
)


def compare(
    first: tuple[Path, RunResult],
    second: tuple[Path, RunResult],
    predicted: Mapping[int, Predictions] = MappingProxyType({}),
) -> str:
    """The differences of two finished runs (folder and result each), for a terminal.

    ``predicted`` compares their predictions by seed, if these were computed again.
    """
    one, other = first[1], second[1]
    heading = "\n".join(
        f"{name}  {folder}\n   {description(result)}"
        for name, (folder, result) in zip(NAMES, (first, second), strict=True)
    )
    results = pd.DataFrame(_results(one, other), columns=["", *NAMES])
    predictions = _recomputed(predicted) if predicted else COUNTS
    parts = [_options(one, other), f"{_table(results)}\n{INTERVALS}", predictions]
    return "\n\n".join([heading, *parts, _layers(one, other)])


def _options(one: RunResult, other: RunResult) -> str:
    """Differing options: those that change results as a table, the others in a line."""
    differing = differing_options(one.config, other.config)
    unimportant = VOLATILE
    if one.target.checksum != other.target.checksum:  # files with different weights
        unimportant -= {"target.weights", "targets"}
    changing = {name: pair for name, pair in differing.items() if name not in unimportant}
    rows = [{"option": name, "A": _value(a), "B": _value(b)} for name, (a, b) in changing.items()]
    text = _table(pd.DataFrame(rows)) if rows else "No option that changes results differs."
    rest = {name: pair for name, pair in differing.items() if name in unimportant}
    others = [f"{name} ({_value(a)}, {_value(b)})" for name, (a, b) in rest.items()]
    if others:
        text += f"\nOther differences, without effect on results: {', '.join(others)}."
    return text


def _value(value: Any) -> str:
    return "null" if value is None else str(value)


def _table(frame: pd.DataFrame) -> str:
    return tables.terminal(frame, FORMATS, dict.fromkeys(NAMES, CELL))


def _results(one: RunResult, other: RunResult) -> list[tuple[str, ...]]:
    """Rows of a name and two values; the runs' origins only if they differ."""
    both = (one, other)
    rows: list[tuple[str, ...]] = [
        ("target accuracy", *(f"{target_accuracy(run)}" for run in both)),
        ("source accuracy", *(f"{run.accuracy}" for run in both)),
        ("loss", *(f"{run.loss}" for run in both)),
        *_predicted(both),
        ("through the real source", *(evaluated_on(run) for run in both)),
        ("layers not converged", *(f"{len(r.unconverged)} of {len(r.layers)}" for r in both)),
        ("trainable parameters", *(f"{run.trainable_parameters:,}" for run in both)),
        ("seconds per seed", *(_seconds(run, "seconds") for run in both)),
        ("of these, to rebuild", *(_seconds(run, "solving_seconds") for run in both)),
        ("training the target, s", *(f"{run.target.seconds:.0f}" for run in both)),
    ]
    return [*rows, *_provenance(one, other)]


def _seconds(run: RunResult, name: str) -> str:
    return f"{mean_interval([getattr(seed, name) for seed in run.seeds]):.1f}"


def _predicted(both: Sequence[RunResult]) -> list[tuple[str, ...]]:
    """Each run's predictions compared with its target's, a number for each seed."""
    names = {
        "predictions that differ from the target's": "differ",
        "  only the target right": "only_target_right",
        "  only the source right": "only_source_right",
    }
    rows = [
        (title, *(_counts([seed.predictions for seed in run.seeds], name) for run in both))
        for title, name in names.items()
    ]
    counted = [row for row in rows if set(row[1:]) != {"not counted"}]
    return counted or [("predictions that differ from the target's", "not counted", "not counted")]


def _counts(predictions: Sequence[Predictions | None], name: str) -> str:
    """The counts by seed, and the number of images; results of earlier versions have none."""
    counted = [one for one in predictions if one is not None]
    if not counted:
        return "not counted"
    return f"{', '.join(str(getattr(one, name)) for one in counted)} of {counted[0].images}"


def _provenance(one: RunResult, other: RunResult) -> list[tuple[str, ...]]:
    """The origins of the results, if they differ."""
    pairs = {
        "images": (one.data.checksum[:12], other.data.checksum[:12]),
        "target": (Path(one.target.folder).name, Path(other.target.folder).name),
        "target's weights": ((one.target.checksum or "")[:12], (other.target.checksum or "")[:12]),
        "target trained on": (one.target.device, other.target.device),
        "target trained in": (one.target.precision, other.target.precision),
        "device": (one.device, other.device),
        "commit": (one.commit, other.commit),
        **{
            f"version of {name}": (one.versions.get(name), other.versions.get(name))
            for name in dict.fromkeys([*one.versions, *other.versions])
        },
        "finished": (one.finished, other.finished),
        "host": (one.host, other.host),
    }
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return [(name, a or NOT_RECORDED, b or NOT_RECORDED) for name, (a, b) in differing.items()]


def _recomputed(predicted: Mapping[int, Predictions]) -> str:
    """The recomputed predictions, a line for each seed."""
    lines = [
        f"  seed {seed}: {counts.differ} of {counts.images} "
        f"({counts.only_target_right} only A right, {counts.only_source_right} only B right)"
        for seed, counts in predicted.items()
    ]
    title = "Images that A and B predict differently, recomputed from the saved sources:"
    return "\n".join([title, *lines])


def _layers(one: RunResult, other: RunResult) -> str:
    """The layers side by side, with their largest error over seeds, and the largest difference."""
    groups = [by_name(run.layers) for run in (one, other)]
    names = dict.fromkeys(name for group in groups for name in group)
    rows = [_layer_row(name, *(group.get(name, []) for group in groups)) for name in names]
    ratios = {row["layer"]: row["ratio B/A"] for row in rows if row["ratio B/A"] is not None}
    frame = pd.DataFrame(rows, dtype=object)  # with an empty cell, widths would become floats
    text = f"Layers, the largest error of all seeds:\n\n{_table(frame)}"
    if not ratios:
        return text
    most = max(ratios, key=lambda name: max(ratios[name], 1 / ratios[name]))
    factor = max(ratios[most], 1 / ratios[most])
    return f"{text}\nThey differ most in {most}, by a factor of {factor:.2g}."


def _layer_row(name: str, one: list[LayerReport], other: list[LayerReport]) -> dict[str, Any]:
    a, b = (max((layer.relative_error for layer in group), default=None) for group in (one, other))
    return {
        "layer": name,
        "n": " or ".join(dict.fromkeys(str(group[0].equations) for group in (one, other) if group)),
        "width A": one[0].width if one else None,
        "width B": other[0].width if other else None,
        "solver A": ", ".join(sorted({layer.solver for layer in one})),
        "solver B": ", ".join(sorted({layer.solver for layer in other})),
        "error A": a,
        "error B": b,
        "ratio B/A": b / a if a and b else None,
    }
