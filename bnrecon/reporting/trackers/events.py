"""What trackers get from a run, during and after it: layers, seeds, the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bnrecon.config.schema import VOLATILE, RunConfig
from bnrecon.reporting.result import RunResult, SeedResult
from bnrecon.runtime.tracking import Plain, TrackedRun, flatten
from bnrecon.solvers.report import SolverReport


def tracked_options(config: RunConfig | Mapping[str, Any]) -> dict[str, Plain]:
    """The options of a run that trackers show: not folders, nor where or how fast it ran."""
    options = flatten(dataclasses.asdict(config) if isinstance(config, RunConfig) else config)
    hidden = VOLATILE - {"scale", "target.name"}
    return {name: value for name, value in options.items() if name not in hidden}


def log_layer(tracked: TrackedRun, seed: int, number: int, report: SolverReport) -> None:
    """Log how well a layer was solved, ``number`` counting from 1."""
    values = {
        f"residual/seed-{seed}": report.relative_residual,
        f"iterations/seed-{seed}": report.iterations,
        f"seconds/seed-{seed}": report.seconds,
    }
    tracked.log("layer", number, values)


def log_seed(tracked: TrackedRun, record: SeedResult, target_accuracy: float) -> None:
    """Log a finished seed: its layers not logged yet, and the source's accuracy."""
    for number, layer in enumerate(record.layers, start=1):
        log_layer(tracked, record.seed, number, layer.solution)
    for number, layer in enumerate(record.layers, start=1):
        tracked.log("layer", number, {f"relative_error/seed-{record.seed}": layer.relative_error})
    values = {
        "accuracy": record.accuracy,
        "loss": target_accuracy - record.accuracy,
        "largest_layer_error": max(layer.relative_error for layer in record.layers),
        "unconverged_layers": sum(not layer.converged for layer in record.layers),
        "seconds": record.seconds,
        "solving_seconds": record.solving_seconds,
    }
    if record.predictions is not None:
        values["predictions_that_differ"] = record.predictions.differ
    tracked.log("seed", record.seed, values)


def log_run(tracked: TrackedRun, result: RunResult) -> None:
    """Log a finished run; rows that were logged while it ran are skipped."""
    for record in result.seeds:
        log_seed(tracked, record, result.target.accuracy)
    accuracy = result.accuracy
    values = {
        "accuracy": accuracy.mean,
        "loss": result.loss.mean,
        "target_accuracy": result.target.accuracy,
        "seeds": len(result.seeds),
        "largest_layer_error": max(layer.relative_error for layer in result.layers),
        "unconverged_layers": len(result.unconverged),
        "trainable_parameters": result.trainable_parameters,
        "seconds": result.seconds,
    }
    if accuracy.half_width is not None:
        values["accuracy_half_width"] = accuracy.half_width
    tracked.log("result", 0, values)
