"""Lines about solving: a layer, a seed, the chosen solvers and why, and failures."""

from __future__ import annotations

import re

from bnrecon.reconstruction.report import LayerReport
from bnrecon.reporting.result import RunResult, SeedRecord
from bnrecon.reporting.wording import span


def layer_line(seed: int, report: LayerReport) -> str:
    """One line for a solved layer."""
    state = "" if report.converged else f"  NOT CONVERGED {report.diagnosis}".rstrip()
    return (
        f"  seed {seed}  {report.name:<24} n={report.equations:<8} c1={report.width:<8} "
        f"{report.solver:<12} error {report.relative_error:.1e}  {report.seconds:.1f} s{state}"
    )


def seed_line(record: SeedRecord) -> str:
    """One line for a finished seed."""
    largest = max(layer.relative_error for layer in record.layers)
    return (
        f"seed {record.seed:<4} accuracy {record.accuracy:.2f}% (n={record.images}, "
        f"{record.source_images} through the real source network), "
        f"max. layer error {largest:.1e}, "
        f"max. logit difference {record.largest_difference_to_target:.1e}, {record.seconds:.0f} s"
    )


def solver_choices(layers: list[LayerReport]) -> list[str]:
    """Why ``auto`` chose its solvers, with the number of layers; old results have no reasons.

    Reasons that differ only in the expected iterations share a line, with their range.
    """
    iterations = re.compile(r"about (\d+) iterations")
    chosen: dict[tuple[str, str], list[str]] = {}
    for layer in filter(lambda layer: layer.reason, layers):
        kind = iterations.sub("about {} iterations", layer.reason)
        chosen.setdefault((layer.solver, kind), []).append(layer.reason)
    lines = []
    for (solver, kind), reasons in sorted(chosen.items(), key=lambda item: -len(item[1])):
        matches = filter(None, map(iterations.search, reasons))
        counts = span((int(match[1]) for match in matches), absent="")
        reason = kind.replace("{}", counts)
        lines.append(f"auto chose {solver} for {len(reasons)} of {len(layers)} layers: {reason}")
    return lines


def diagnoses(layers: list[LayerReport]) -> list[str]:
    """The known reasons why layers did not converge, once for each layer's name."""
    reasons = {(layer.name, layer.diagnosis) for layer in layers if layer.diagnosis}
    return [f"not converged: {name}: {diagnosis}" for name, diagnosis in sorted(reasons)]


def warnings(result: RunResult) -> list[str]:
    """How many layers did not converge, the accuracy lost, and what to change.

    Empty if all converged.
    """
    if not result.unconverged:
        return []
    # A layer may be solved, and fail only as assembled, or for the weights of one output.
    largest = max(
        max(layer.relative_error, layer.assembled_error, layer.channel_error or 0.0)
        for layer in result.unconverged
    )
    return [
        f"NOT CONVERGED: {len(result.unconverged)} of {len(result.layers)} layers, relative errors "
        f"up to {largest:.1e}; the reproduced network loses {result.loss.mean:z.2f} points of "
        f"accuracy. {_advice(result)}."
    ]


def _advice(result: RunResult) -> str:
    """What to change so that the layers converge."""
    features, tolerance = result.config["features"], result.config["solver"]["tolerance"]
    if features.get("pruning") == "magnitude":
        return (
            "Keep all features (features.keep=null), or n of them or more and solve again "
            "(features.pruning=refit)"
        )
    if features.get("keep") is not None:
        return "Keep n features or more (features.keep): a new solve is exact from there on"
    if all(layer.relative_error <= tolerance for layer in result.unconverged):
        return (
            "Take more features (features.oversampling=1.1): "
            "rounding to float32 loses what the solver found"
        )
    if any(layer.width <= layer.equations - layer.shape[0] for layer in result.unconverged):
        from bnrecon.features.register import DISTRIBUTIONS  # finished runs are read without torch

        distribution = DISTRIBUTIONS.get(features["name"])
        enough = 1 if distribution is not None and distribution.at_most_n else 1.5
        chosen = ", ".join(
            f"features.{key}={value}"
            for key in ("oversampling", "excess", "width")
            if (value := features.get(key)) is not None
        )
        return (
            f"Take more features (features.oversampling={enough}): "
            f"{chosen} gives fewer than the theorems require"
        )
    more = "more features (features.oversampling=1.5), "
    more = more if any(layer.oversampling < 1.5 for layer in result.unconverged) else ""
    return f"Take {more}solver=auto, or a larger solver.max_iterations"
