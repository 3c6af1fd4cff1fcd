"""The runs of a folder as one table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bnrecon.reporting import run_tables
from bnrecon.reporting.result import read_all
from bnrecon.reproduction.report.html_table import HtmlTable, html_table
from bnrecon.runtime.shipped import shipped_outputs

__all__ = ["Runs", "read_runs"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Runs:
    """All finished runs of a folder, and what is wrong with those that cannot be read."""

    table: HtmlTable | None
    count: int
    caption: str
    problems: Sequence[str]


def read_runs(outputs: Path) -> Runs:
    """Read the results of ``runs/*`` below a folder, and those that ship with the package.

    A damaged one is named and left out.
    """
    paths: dict[str, Path] = {}
    for place in (shipped_outputs(outputs), outputs):  # one's own count where there are both
        paths |= {path.parent.name: path for path in place.glob("runs/*/result.json")}
    results, problems = read_all(paths[name] for name in sorted(paths))
    for problem in problems:
        logger.warning("left out: %s", problem)
    # The folder's own place says nothing to whom the report is sent to.
    problems = [problem.replace(f"{outputs}/", "") for problem in problems]
    table = None
    if results:
        frame = run_tables.summary(list(results.values()))
        frame["run"] = [path.parent.name for path in results]
        title = "All runs"
        table = html_table(frame, "runs-table", title, run_tables.FORMATS)
    caption = " ".join((run_tables.CAPTION, run_tables.PREDICTIONS))
    return Runs(table, len(results), caption, problems)
