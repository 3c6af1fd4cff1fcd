"""The tables of runs, by run and by layer, and the text files next to a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from bnrecon.reconstruction.report import LayerReport
from bnrecon.reporting import tables
from bnrecon.reporting.convergence import diagnoses, solver_choices, warnings
from bnrecon.reporting.result import RunResult
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reporting.wording import count_of

FORMATS = {
    "target accuracy": ".2f",
    "oversampling": ".3f",
    "max. layer error": ".1e",
    "max. error": ".1e",
    "as assembled": ".1e",
    "max. logit difference": ".1e",
    "seconds": ".2f",
    "seconds per seed": ".1f",
    "changed predictions": ".0f",
    "only target right": ".0f",
    "only source right": ".0f",
    "McNemar p": ".2g",
}
CAPTION = (
    "Accuracies are in percent, of the target and of the source networks that were reconstructed "
    "from it; loss is target minus source. Intervals are mean ± half-width of the 95% Student-t "
    "interval over the seeds of the source. Layer errors are ‖W′ − W‖ / ‖W‖, the largest over "
    "seeds: in float64, and as assembled in the precision of the network. Logits are compared "
    "with the target's on the images that went through the real source network (evaluated on); the "
    "other test images went through its collapsed form."
)
PREDICTIONS = (
    "Changed predictions: the images, of all that were tested on, for which source and target "
    "predict different classes, with those of them where only the one is right (where they differ, "
    "both may be wrong). The counts are those of the seed with the most such images. McNemar p: of "
    "the exact test that both networks are equally often right."
)


def summary(results: Sequence[RunResult], options: Sequence[str] = ()) -> pd.DataFrame:
    """One row per run, with numbers and intervals over seeds.

    If two rows have the same labels, ``options``, the overrides of each run, tell them apart.
    """
    frame = pd.DataFrame([_row(result) for result in results])
    if options and frame.duplicated(["data", "target", "scale", "features", "solver"]).any():
        frame.insert(0, "options", list(options))
    return frame


def markdown(results: Sequence[RunResult], options: Sequence[str] = ()) -> str:
    """The rows of ``summary`` in Markdown."""
    return tables.markdown(summary(results, options), FORMATS)


def terminal(results: Sequence[RunResult], options: Sequence[str] = ()) -> str:
    """The columns that fit a terminal: the options that differ, and the results."""
    frame = summary(results, options)
    same = [name for name in ("data", "target", "scale") if frame[name].nunique() == 1]
    shown = ["options", "data", "target", "scale", "features", "solver", "target accuracy", "loss"]
    shown += ["changed predictions", "max. layer error", "not converged"]
    return tables.terminal(frame[[c for c in shown if c in frame and c not in same]], FORMATS)


def _row(result: RunResult) -> dict[str, Any]:
    layers, evaluation = result.layers, result.evaluation
    row = {
        "data": data_name(result),
        "target": target_name(result.config["target"]),
        "scale": result.config["scale"],
        "features": feature_name(result.config["features"]),
        "solver": ", ".join(sorted({layer.solver for layer in layers})),
        "target accuracy": result.target.accuracy,
        "source accuracy": result.accuracy,
        "loss": result.loss,
        "test images": result.target.images,
        "evaluated on": evaluation.images,
        "max. logit difference": evaluation.largest_difference_to_target,
        "max. layer error": max(layer.relative_error for layer in layers),
        "layers": len(layers),
        "implicit layers": evaluation.implicit_layers,
        "not converged": len(result.unconverged),
        "seconds per seed": mean_interval([seed.seconds for seed in result.seeds]).mean,
    }
    if (counts := result.predictions) is None:  # an older result, without counts
        return row
    return row | {
        "changed predictions": counts.differ,
        "only target right": counts.only_target_right,
        "only source right": counts.only_source_right,
        "McNemar p": counts.p_value,
    }


def data_name(result: RunResult) -> str:
    """The data set, and whether the accuracies are of held-out training images."""
    held_out = result.config["data"].get("validation") is not None
    return f"{result.data.name} (held out)" if held_out else result.data.name


def target_name(target: Mapping[str, Any]) -> str:
    """Name, width, activation if not relu, and the factors or the file of its weights.

    >>> target_name({"name": "vgg18", "width": 16, "activation": "tanh", "density": 0.5})
    'vgg18 (16, tanh, density=0.5)'
    """
    activation = target.get("activation", "relu")
    factors = {"κ": target.get("condition"), "density": target.get("density")}
    parts = [str(target["width"])] + ([] if activation == "relu" else [activation])
    parts += [f"{name}={value:g}" for name, value in factors.items() if value is not None]
    if (weights := target.get("weights")) is not None:
        parts.append(f"weights={Path(weights).name}")
    return f"{target['name']} ({', '.join(parts)})"


def feature_name(features: Mapping[str, Any]) -> str:
    """Name, and if set, width, activation and skip connection.

    >>> feature_name({"name": "id_cond", "width": "minimum", "skip": "inner"})
    'id_cond (c1=minimum, skip=inner)'
    """
    chosen = {"c1/n": "oversampling", "c1-n": "excess", "c1": "width"}
    parts = [
        f"{name}={features[key]}" for name, key in chosen.items() if features.get(key) is not None
    ]
    if (activation := features.get("activation", "identity")) != "identity":
        parts.append(activation)
    if (skip := features.get("skip", "none")) != "none":
        parts.append(f"skip={skip}")
    if features.get("strict"):
        parts.append("strict")
    if features.get("keep") is not None:
        parts.append(f"keep={features['keep']} {features['pruning']}")
    return f"{features['name']} ({', '.join(parts)})" if parts else str(features["name"])


def evaluated_on(result: RunResult) -> str:
    """Which test images went through the real source network."""
    evaluation = result.evaluation
    images = f"{evaluation.images} of {result.data.test} images"
    if evaluation.network == "source":
        images = "all images"
    if evaluation.implicit_layers:
        return f"{images}, {evaluation.implicit_layers} layers implicit"
    return images


def by_name(layers: Sequence[LayerReport]) -> dict[str, list[LayerReport]]:
    """The reports of each layer, one per seed."""
    reports: dict[str, list[LayerReport]] = {}
    for layer in layers:
        reports.setdefault(layer.name, []).append(layer)
    return reports


def layer_summary(layers: Sequence[LayerReport]) -> pd.DataFrame:
    """One row per layer: its widths, and the largest errors over seeds."""
    rows = []
    for name, group in by_name(layers).items():
        first = group[0]
        row = {
            "layer": name,
            "shape": "x".join(map(str, first.shape)),
            "width": first.width,
            "oversampling": first.oversampling,
            "solver": ", ".join(sorted({layer.solver for layer in group})),
            "max. error": max(layer.relative_error for layer in group),
            "as assembled": max(layer.assembled_error for layer in group),
            "seconds": mean_interval([layer.seconds for layer in group]).mean,
            "converged": f"{sum(layer.converged for layer in group)} of {len(group)}",
        }
        if first.kept is not None:
            row["kept"] = first.kept
        ranks = [layer.rank for layer in group if layer.rank is not None]
        rows.append(row | ({"rank": f"{min(ranks)} of {first.equations}"} if ranks else {}))
    return pd.DataFrame(rows)


def run_text(result: RunResult) -> str:
    """The final output of a run: the layers, the accuracies, and what needs attention."""
    headline = {
        "target accuracy": target_accuracy(result),
        "source accuracy": result.accuracy,
        "loss": result.loss,
        "max. logit difference": result.evaluation.largest_difference_to_target,
        "evaluated on": evaluated_on(result),
    }
    parts = [tables.terminal(layer_summary(result.layers), FORMATS)]
    parts += [*solver_choices(result.layers), *diagnoses(result.unconverged), *_attention(result)]
    parts += [f"{description(result)}:", tables.terminal(pd.DataFrame([headline]), FORMATS)]
    return "\n\n".join([*parts, *warnings(result)])


def target_accuracy(result: RunResult) -> Interval:
    """The target's accuracy, with the number of images."""
    return Interval(result.target.accuracy, None, result.target.images)


def description(result: RunResult) -> str:
    """The target and the features of a run."""
    return (
        f"{target_name(result.config['target'])} on {data_name(result)} from "
        f"{feature_name(result.config['features'])}, {count_of(len(result.seeds), 'seed')}, "
        f"scale {result.config['scale']}"
    )


def _attention(result: RunResult) -> list[str]:
    """Differing predictions, redrawn features, and values outside the linear region."""
    lines = []
    if (counts := result.predictions) is not None:
        seeds = ", in the seed with most" if len(result.seeds) > 1 else ""
        lines.append(
            f"{counts.differ} of {counts.images} predictions differ from the target's"
            f"{seeds} ({counts.only_target_right} only the target right, "
            f"{counts.only_source_right} only the source right)"
        )
    if redrawn := result.redrawn:
        lines.append(
            f"{redrawn} features were all zero and were drawn again "
            "(features.strict=true keeps them)"
        )
    if result.outside_linear_region:
        lines.append(
            f"{result.outside_linear_region} intermediate values on test images fell outside the "
            "activation's linear region; raise features.margin"
        )
    return lines


def table_files(result: RunResult) -> dict[str, str]:
    """The tables next to a run's result, by file name.

    ``table.md`` and ``table.csv`` have the run, ``layers.csv`` every layer of every seed.
    """
    page = [
        markdown([result]),
        tables.markdown(layer_summary(result.layers), FORMATS),
        *warnings(result),
        CAPTION,
        *([PREDICTIONS] if result.predictions is not None else []),
    ]
    return {
        "table.md": "\n\n".join(page) + "\n",
        "table.csv": tables.csv(summary([result])),
        "layers.csv": tables.csv(pd.DataFrame(result.layer_rows)),
    }
