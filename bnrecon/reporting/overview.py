"""All finished runs of a folder, one line each, in a terminal's width."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from bnrecon.reporting import tables
from bnrecon.reporting.result import RunResult, read_all
from bnrecon.reporting.run_tables import data_name, feature_name, target_accuracy, target_name
from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError

logger = logging.getLogger(__name__)

WRAP = {"features": 22, "solver": 12, "seeds": 7}
FOOTER = """\
Accuracies are in percent, with 95% Student-t intervals over the seeds of the source network.
loss: accuracy of the target minus that of the source; not converged: layers that did not converge,
of those of all seeds; shipped: there is only the result. Compare two runs by:
bnrecon compare RUN RUN"""


def overview(outputs: Path) -> str:
    """The runs below an outputs folder, grouped by target, in lines of at most 100 columns.

    A run is ``shipped`` if its folder has only the result, without a folder for each seed. Files
    that cannot be read are skipped with a warning.

    Raises:
        UserError: there is no finished run.
    """
    results, problems = read_all(files.find(outputs, "runs/*/result.json"))
    for problem in problems:
        logger.warning("left out: %s", problem)
    if not results:
        raise UserError(
            f"no finished runs in {outputs}; make one with: bnrecon run outputs={outputs}"
        )
    groups: dict[tuple[str, str], list[tuple[Path, RunResult]]] = {}
    for path, result in results.items():
        key = _target(result), Path(result.target.folder).name
        groups.setdefault(key, []).append((path.parent, result))
    parts = [
        f"{heading}; {target}\n\n{_table(groups[heading, target])}"
        for heading, target in sorted(groups)
    ]
    return "\n\n".join([*parts, FOOTER])


def _target(result: RunResult) -> str:
    config, accuracy = result.config, target_accuracy(result)
    name = target_name(config["target"])
    return f"{data_name(result)}, {name}, scale {config['scale']}: accuracy {accuracy}"


def _table(runs: Iterable[tuple[Path, RunResult]]) -> str:
    """The runs of one target, one row each, those of one distribution by the source's width."""
    rows = sorted(
        runs,
        key=lambda run: (
            run[1].config["features"]["name"],
            sum(layer.width for layer in run[1].seeds[0].layers),
            feature_name(run[1].config["features"]),
        ),
    )
    return tables.terminal(pd.DataFrame([_row(*row) for row in rows]), wrap=WRAP)


def _row(folder: Path, result: RunResult) -> dict[str, Any]:
    return {
        "features": feature_name(result.config["features"]),
        "solver": ", ".join(sorted({layer.solver for layer in result.layers})),
        "seeds": ",".join(str(seed.seed) for seed in result.seeds),
        "loss": result.loss,
        "not converged": f"{len(result.unconverged)}/{len(result.layers)}",
        "run": folder.name.rpartition("-")[2],
        "origin": "own" if any(folder.glob("seed-*")) else "shipped",
    }
