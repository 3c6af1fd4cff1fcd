"""All finished runs of a folder, one line each, in a terminal's width."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from bnrecon.reporting import tables
from bnrecon.reporting.option_differences import flatten_options
from bnrecon.reporting.result import RunResult, read_all
from bnrecon.reporting.run_tables import feature_name, target_name
from bnrecon.runtime.errors import UserError

logger = logging.getLogger(__name__)

LINE = 100  # columns of a terminal
WRAP = {"features": 22, "solver": 12, "seeds": 7}
# The options that tell runs apart, beside those that have columns of their own.
TRAINING = ("data.", "target.", "train.")
RECONSTRUCTION = (
    *("features.epsilon", "features.margin", "features.allow_below_minimum"),
    *("solver.tolerance", "solver.max_iterations", "evaluate", "source_images"),
)
# Options of a nonlinear first layer that have no effect with some activations.
WITHOUT_EPSILON = ("identity", "relu", "leaky_relu")  # exact ones
WITHOUT_MARGIN = ("identity",)
NOT_RESULTS = ("data.root", "data.download", "data.workers", "train.time", "train.checkpoint")
FORMATS = {"loss": "z.2f"}  # z: no -0.00
FOOTER = """\
Accuracies are in percent, with 95% Student-t intervals over the seeds of the source network.
loss: accuracy of the target minus that of the source; not converged: layers that did not converge,
of those of all seeds; shipped: only the result is there. A run's folder ends in its name, as in"""


def overview(outputs: Path) -> str:
    """The runs below an outputs folder, grouped by their target; no line is over 100 columns.

    A run is ``shipped`` when its folder holds the result alone, without a folder for each seed.
    Files that cannot be read are left out with a warning.

    Raises:
        UserError: there is no finished run.
    """
    results, problems = read_all(sorted(outputs.glob("runs/*/result.json")))
    for problem in problems:
        logger.warning("left out: %s", problem)
    if not results:
        raise UserError(
            f"no finished runs in {outputs}; make one with: bnrecon run outputs={outputs}"
        )
    alike: dict[str, dict[str, dict[Path, RunResult]]] = {}
    for path, result in results.items():
        targets = alike.setdefault(_target(result), {})
        targets.setdefault(Path(result.target.folder).name, {})[path.parent] = result
    parts = []
    for name, targets in sorted(alike.items()):
        groups = [runs for _, runs in sorted(targets.items())]
        firsts = [next(iter(runs.values())) for runs in groups]
        for runs, first, options in zip(groups, firsts, _differing(firsts, TRAINING), strict=True):
            accuracy = f"target accuracy {first.target.accuracy:.2f} (n={first.target.images})"
            heading = textwrap.fill(f"{', '.join([name, *options])}: {accuracy}", LINE)
            parts.append(f"{heading}\n\n{_table(runs)}")
    return "\n\n".join([*parts, f"{FOOTER}\n{next(iter(results)).parent}"])


def _target(result: RunResult) -> str:
    config = result.config
    return f"{config['data']['name']}, {target_name(config['target'])}, scale {config['scale']}"


def _table(runs: Mapping[Path, RunResult]) -> str:
    """The runs of one target, a row a run, those of one distribution by the source's width."""
    options = _differing(list(runs.values()), RECONSTRUCTION)
    rows = sorted(
        zip(runs, runs.values(), options, strict=True),
        key=lambda row: (
            row[1].config["features"]["name"],
            sum(layer.width for layer in row[1].seeds[0].layers),
            feature_name(row[1].config["features"]),
        ),
    )
    frame = pd.DataFrame([_row(*row) for row in rows])
    return tables.terminal(frame, FORMATS, WRAP)


def _row(folder: Path, result: RunResult, options: list[str]) -> dict[str, Any]:
    shipped = not any(folder.glob("seed-*"))
    return {
        "features": " ".join([feature_name(result.config["features"]), *options]),
        "solver": ", ".join(sorted({layer.solver for layer in result.layers})),
        "seeds": _numbers([seed.seed for seed in result.seeds]),
        "loss": result.loss,
        "not converged": f"{len(result.unconverged)}/{len(result.layers)}",
        "run": folder.name.rpartition("-")[2],
        "": "shipped" if shipped else "own",
    }


def _numbers(seeds: list[int]) -> str:
    """Seeds in short.

    >>> _numbers([0, 1, 2]), _numbers([0, 5])
    ('0-2', '0,5')
    """
    first, last = seeds[0], seeds[-1]
    if len(seeds) > 2 and seeds == list(range(first, last + 1)):
        return f"{first}-{last}"
    return ",".join(map(str, seeds))


def _differing(results: list[RunResult], among: tuple[str, ...]) -> list[list[str]]:
    """For each run those options, of names beginning with ``among``, that differ between runs.

    A result that was stored before an option existed does not name it.
    """
    flat = [_effective(result.config) for result in results]
    names = [
        name
        for name in dict.fromkeys(name for options in flat for name in options)
        if name.startswith(among)
        and not name.startswith(NOT_RESULTS)
        and len({str(options.get(name)) for options in flat}) > 1
    ]
    return [
        [f"{name.rpartition('.')[2]}={options[name]}" for name in names if name in options]
        for options in flat
    ]


def _effective(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options by their full names, without those that have no effect beside the others."""
    options = dict(flatten_options(config))
    activation = options.get("features.activation", "identity")
    unused = {
        "features.epsilon": activation in WITHOUT_EPSILON,
        "features.margin": activation in WITHOUT_MARGIN,
    }
    return {name: value for name, value in options.items() if not unused.get(name)}
