"""Tables from result.json files alone: Markdown and CSV, with intervals over seeds."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd

from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.reconstruction.report import LayerReport
from bnrecon.reporting.statistics import mean_interval
from bnrecon.runtime import files

__all__ = [
    "as_json",
    "collect",
    "for_reading",
    "latex",
    "layer_line",
    "layers",
    "markdown",
    "read_result",
    "real_source_on",
    "seed_line",
    "short_of",
    "summary",
    "texts",
    "write",
]


LATEX = {
    "Δ": "$\\Delta$",
    "²": "$^2$",
    "ᵀ": "$^T$",
    "ε": "$\\varepsilon$",
    "κ": "$\\kappa$",
    "λ": "$\\lambda$",
    "γ": "$\\gamma$",
    "Σ": "$\\Sigma$",
    "±": "$\\pm$",
    "√": "$\\surd$",
    "≤": "$\\le$",
    "≥": "$\\ge$",
    "−": "$-$",
    "½": "$1/2$",
}


def as_json(content: dict[str, Any]) -> str:
    """A mapping as a person reads JSON."""
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def summary(results: list[dict[str, Any]]) -> pd.DataFrame:
    """One row a run: accuracies in percent, reconstructed as mean ± half-width of the 95% Student-t interval over seeds."""
    rows = []
    for result in results:
        config, source, target = result["config"], result["source"], result["target"]
        accuracy = mean_interval(source["accuracy"])
        loss = mean_interval([target["accuracy"] - value for value in source["accuracy"]])
        errors = [layer["relative_error"] for layer in result["layers"]]
        unsolved = sum(not layer["converged"] for layer in result["layers"])
        evaluated = source["evaluated"]
        solvers = sorted({layer["solver"] for layer in result["layers"]})
        rows.append(
            {
                "data": config["data"]["name"],
                "target": f"{config['target']['name']} ({_described(config['target'])})",
                "scale": config["scale"],
                "features": _features(config["features"]),
                "solver": ", ".join(solvers),
                "target accuracy": f"{target['accuracy']:.2f} (n={target['images']})",
                "reconstructed accuracy": accuracy.format(),
                "loss": loss.format(),
                "real source on": real_source_on(evaluated),
                "largest layer error": f"{max(errors):.1e}",
                "not converged": f"{unsolved} of {len(errors)}",
                "seconds per seed": f"{mean_interval(result['seconds_per_seed']).mean:.1f}",
            }
        )
    return pd.DataFrame(rows)


def _described(target: dict[str, Any]) -> str:
    """Width, activation where it is not relu, and what the weights are behind."""
    extra = {"κ": target.get("condition"), "density": target.get("density")}
    activation = [] if target.get("activation", "relu") == "relu" else [target["activation"]]
    behind = [f"{name} = {value:g}" for name, value in extra.items() if value is not None]
    return ", ".join([str(target["width"]), *activation, *behind])


def _features(features: dict[str, Any]) -> str:
    """Name, and the width where one was chosen."""
    chosen = {"c1/n": "oversampling", "c1 - n": "excess", "c1": "width"}
    given = [
        f"{name} = {features[key]}" for name, key in chosen.items() if features.get(key) is not None
    ]
    return f"{features['name']} ({given[0]})" if given else features["name"]


def real_source_on(evaluated: dict[str, Any]) -> str:
    """Which test images went through the real source network, in words."""
    seen = (
        "all"
        if evaluated["network"] == "source"
        else f"first {evaluated['images']}, rest collapsed"
    )
    return (
        f"{seen}; {evaluated['implicit_layers']} layers implicit"
        if evaluated.get("implicit_layers")
        else seen
    )


def layers(result: dict[str, Any]) -> pd.DataFrame:
    """One row a layer: widths, and the largest errors over seeds."""
    frame = pd.DataFrame(result["layers"])
    rows = []
    for name, group in frame.groupby("name", sort=False):
        first = group.iloc[0]
        shape = "x".join(map(str, first["shape"]))
        rows.append(
            {
                "layer": name,
                "shape": shape,
                "width": first["width"],
                "oversampling": f"{first['oversampling']:.3f}",
                "solver": ", ".join(sorted(set(group["solver"]))),
                "relative error": f"{group['relative_error'].max():.1e}",
                "assembled error": f"{group['assembled_error'].max():.1e}",
                "seconds": f"{group['seconds'].mean():.2f}",
                "converged": f"{int(group['converged'].sum())} of {len(group)}",
            }
        )
        if pd.notna(first["rank"]):
            rows[-1]["rank"] = f"{int(group['rank'].min())} of {first['equations']}"
    return pd.DataFrame(rows).fillna("")


def for_reading(result: dict[str, Any]) -> str:
    """What a run prints at its end: the layers, then the line that matters."""
    parts = [markdown(layers(result)), markdown(summary([result]))]
    parts += [f"auto picked {line}" for line in _reasons(result["layers"])]
    parts += [f"not converged: {line}" for line in _diagnoses(result["layers"])]
    redrawn = sum(layer["redrawn"] for layer in result["layers"])
    if redrawn:
        parts.append(
            f"{redrawn} features came out wholly zero and were drawn anew (features.strict=true keeps them)"
        )
    outside = result["source"]["outside_linear_region"]
    if outside:
        parts.append(
            f"{outside} intermediate values on test images fell outside the activation's linear region; raise features.margin"
        )
    return "\n\n".join([*parts, *short_of(result)])


def short_of(result: dict[str, Any]) -> list[str]:
    """Where layers did not converge: how many, what it cost, what to change. Nothing where all did."""
    rows, config = result["layers"], result["config"]
    missed = [row for row in rows if not row["converged"]]
    if not missed:
        return []
    loss = result["target"]["accuracy"] - sum(result["source"]["accuracy"]) / len(
        result["source"]["accuracy"]
    )
    worst = max(row["relative_error"] for row in missed)
    rounded = all(row["relative_error"] <= config["solver"]["tolerance"] for row in missed)
    given = [
        f"features.{key}={value}"
        for key in ("oversampling", "excess", "width")
        if (value := config["features"].get(key))
    ]
    if rounded:
        change = (
            "take more features (features.oversampling=1.1): float32 rounds what the solver found"
        )
    elif any(row["width"] < row["equations"] - row["shape"][0] for row in missed):
        kind = DISTRIBUTIONS.get(config["features"]["name"])
        enough = 1 if kind is not None and kind.at_most_n else 1.5
        change = f"take more features (features.oversampling={enough}): {', '.join(given)} are fewer than the theorems ask for"
    else:
        change = "take more features (features.oversampling=1.5), solver=auto, or a larger solver.max_iterations"
    return [
        f"NOT CONVERGED: {len(missed)} of {len(rows)} layers, relative errors up to {worst:.1e}; the rebuilt network loses "
        f"{loss:.2f} points of accuracy. {change[0].upper()}{change[1:]}."
    ]


def _reasons(rows: list[dict[str, Any]]) -> list[str]:
    """Why ``auto`` picked its solvers, for each one and reason the number of layers. Results of old runs have no reasons."""
    picked = Counter((row["solver"], row["reason"]) for row in rows if row.get("reason"))
    return [
        f"{solver} for {count} of {len(rows)} layers: {reason}"
        for (solver, reason), count in picked.most_common()
    ]


def _diagnoses(rows: list[dict[str, Any]]) -> list[str]:
    """What was found to stand in the way of layers that did not converge, once for each layer."""
    found = {
        (row["name"], row["diagnosis"])
        for row in rows
        if row.get("diagnosis") and not row["converged"]
    }
    return [f"{name}: {diagnosis}" for name, diagnosis in sorted(found)]


def markdown(frame: pd.DataFrame) -> str:
    """A frame as a Markdown table, as written: no number is reformatted."""
    return frame.to_markdown(index=False, disable_numparse=True)


def latex(frame: pd.DataFrame) -> str:
    """A table for LaTeX, with commands in the place of what it has no letters for.

    >>> print(latex(pd.DataFrame({"Δk²": ["±1"]})).splitlines()[2])
    $\\Delta$k$^2$ \\\\
    """
    text = frame.to_latex(index=False, escape=True)
    for letter, command in LATEX.items():
        text = text.replace(letter, command)
    return text


def write(folder: Path, result: dict[str, Any]) -> None:
    """Write a run's tables beside its result: table.md and table.csv (the run), layers.csv (every layer of every seed)."""
    for name, text in texts(result).items():
        files.write_text(folder / name, text)


def texts(result: dict[str, Any]) -> dict[str, str]:
    """A run's tables by file name."""
    caption = f"Scale {result['config']['scale']}; accuracies in percent; intervals are 95% Student-t over source seeds."
    page = [markdown(summary([result])), markdown(layers(result)), *short_of(result), caption]
    return {
        "table.md": "\n\n".join(page) + "\n",
        "table.csv": summary([result]).to_csv(index=False),
        "layers.csv": pd.DataFrame(result["layers"]).to_csv(index=False),
    }


def layer_line(seed: int, report: LayerReport) -> str:
    """One line of progress for a solved layer."""
    state = "" if report.converged else f"  NOT CONVERGED {report.diagnosis}".rstrip()
    return (
        f"  seed {seed}  {report.name:<24} n={report.equations:<8} c1={report.width:<8} {report.solver:<12} "
        f"error {report.relative_error:.1e}  {report.seconds:.1f} s{state}"
    )


def seed_line(row: dict[str, Any]) -> str:
    """One line for a finished seed."""
    worst = max(layer["relative_error"] for layer in row["layers"])
    return (
        f"seed {row['seed']:<4} accuracy {row['accuracy']:.2f}% (n={row['images']}, {row['source_images']} through the real source), "
        f"largest layer error {worst:.1e}, logits within {row['largest_difference_to_target']:.1e} of the target's, {row['seconds']:.0f} s"
    )


def collect(outputs: Path) -> list[dict[str, Any]]:
    """All finished runs below an outputs folder, damaged ones named and left out."""
    results = []
    for path in sorted(outputs.glob("runs/*/result.json")):
        try:
            results.append(read_result(path))
        except (ValueError, FileNotFoundError) as error:
            print(f"left out: {error}", file=sys.stderr)
    return results


def read_result(path: Path) -> dict[str, Any]:
    """A finished run's ``result.json``.

    Raises ``files.Damaged`` where it is damaged, or where no table can be made of it: another version wrote it.
    """
    result = files.read_json(path)
    try:
        summary([result])
        layers(result)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise files.Damaged(
            f"{path} was written by another version of bnrecon, or by something else ({reason})"
        ) from None
    return result
