"""Task files: the rows of one finished task each, written atomically, by one process at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from bnrecon.config import composition
from bnrecon.run.naming import run_folder
from bnrecon.runtime import files
from bnrecon.runtime.digests import content_key, json_values

if TYPE_CHECKING:
    from bnrecon.reproduction.parts import Task

INFINITE = {"inf": math.inf, "-inf": -math.inf}  # JSON has no such numbers


@dataclass(frozen=True)
class TaskResult(files.Stored):
    """The result of a finished task, and its origin."""

    experiment: str  # the part of the study
    scale: str  # the scale of the computation
    task: str  # the task's name
    key: str  # hash of what the rows depend on; see ``task_key``
    # One mapping from column to cell per row: numbers, words, booleans, ``None``
    rows: tuple[Mapping[str, Any], ...]
    commit: str  # the code's commit
    machine: str  # the device, and its threads
    seconds: float  # time of the computation

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> TaskResult:
        """Read the content of a task file."""
        rows = content.pop("rows")
        cells = [{name: INFINITE.get(cell, cell) for name, cell in row.items()} for row in rows]
        return cls(rows=tuple(cells), **content)

    def write(self, path: Path) -> None:
        """Write the task file atomically, with a digest that ``read`` checks."""
        rows = [{name: _cell(value) for name, value in row.items()} for row in self.rows]
        files.write_json(path, vars(self) | {"rows": rows})


def _cell(value: Any) -> Any:
    """A cell as a JSON value: missing values are null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return None if value is None or value is pd.NA else value


def task_key(experiment: str, task: Task) -> str:
    """A hash of what a task's rows depend on: the experiment, the task's name and its arguments.

    Options count by their effect on the run that they describe: ``target.width=8`` is another task
    than the default, ``data.root=FOLDER`` or ``device=cpu`` is not. For a user's images the pixels
    count.
    """
    content: dict[str, Any] = {"experiment": experiment, "task": task.name}
    content["arguments"] = json_values(task.arguments)
    if task.options is not None:
        content["run"] = run_folder(composition.compose(task.options)).name
    return content_key(content)


def task_path(folder: Path, experiment: str, scale: str, task: Task) -> Path:
    """The path of a task's file below a study's folder."""
    slug = re.sub(r"[^a-z0-9]+", "-", task.name.lower()).strip("-")[:60]
    name = f"{slug}-{task_key(experiment, task)}.json".lstrip("-")
    return folder / "tasks" / f"{experiment}-{scale}" / name


def concatenate(results: Iterable[TaskResult]) -> pd.DataFrame:
    """Concatenate the rows of all tasks.

    A missing cell is NaN in a column of numbers, and the empty string in a column of words.
    """
    frame = pd.DataFrame([row for result in results for row in result.rows])
    for name in frame.columns:
        column = frame[name]
        if column.isna().all():
            frame[name] = column.astype(float)
        elif column.dtype.kind not in "fibu":
            frame[name] = column.astype(object).where(column.notna(), "")
    return frame
