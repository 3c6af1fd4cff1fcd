#!/usr/bin/env python3
"""Turn an experiment's CSV of an earlier version, all tasks in one file, into one file per task.

    python scripts/convert_study.py STUDY [PART ...] [--folder outputs/STUDY] [--scale laptop]

FOLDER/PART-SCALE.csv becomes FOLDER/tasks/PART-SCALE/*.json; the CSV itself stays. The digests
inside the CSV are checked first, and every number is compared with what was written at the end.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from bnrecon.reporting.tables import snake_case
from bnrecon.reproduction.experiment import Experiment
from bnrecon.reproduction.task_store import TaskResult, task_key, task_path
from bnrecon.studies import registry

# Columns whose new name is not the old one in snake_case, by part.
COLUMNS: Mapping[str, Mapping[str, str]] = {
    "thresholds": {"beyond the minimum": "beyond_minimum"},
    "deeper": {"L": "layers", "beyond n + L - 1": "beyond"},
    "conditioning": {
        "c0 = c2": "channels",
        "condition": "condition_number",
        "why not": "failure",
    },
    "spectrum": {
        "c0 = c2": "channels",
        "from": "bin_start",
        "to": "bin_end",
        "distance": "mean_distance",
        "condition": "median_condition_number",
    },
    "descent": {
        "c0 = c2": "channels",
        "c1 / n": "oversampling",
        "condition": "condition_number",
        "off-diagonal": "largest_off_diagonal",
    },
    "equivalence": {
        "loss, as they stand": "loss_two_convolutions",
        "loss, collapsed": "loss_one_convolution",
        "gradients apart, as they stand": "gradient_difference_two_convolutions",
        "gradients apart, collapsed": "gradient_difference_one_convolution",
    },
    "projection": {
        "c0 = c2": "channels",
        "r = c1": "c1",
        "n - r": "missing",
        "least squares": "least_squares_error",
        "the last n - r": "norm_of_last_n_minus_r",
        "the last r": "norm_of_last_r",
    },
    "alignment": {
        "c0 = c2": "channels",
        "as it is": "unpermuted",
        "permuted": "greedy",
        "best of 200 random": "best_random",
        "missing": "complement_dimension",
    },
    "masks": {
        "c0 = c2": "channels",
        "as it is": "unpermuted",
        "permuted": "greedy",
        "best of 200 random": "best_random",
    },
    "matching": {
        "feature density p": "feature_density",
        "sense": "bound_kind",
        "low": "share_low",
        "high": "share_high",
        "proof": "partition_probability",
    },
}
# Columns of words, though some parts have only words that look like numbers.
WORDS = {"setting"}
# Counted and not measured: its CSV had numbers with units, and computing it takes a second.
COMPUTED_AGAIN = {"cost"}
ORIGIN = ("piece", "commit", "machine", "seconds_in_all", "digest")


def main(arguments: list[str] | None = None) -> int:
    """Convert the parts; exit with 1 if something was not converted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study")
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--scale", default="laptop")
    args = parser.parse_args(arguments)
    study = registry.find(args.study)
    folder = args.folder or Path("outputs") / args.study
    code = 0
    for name in args.parts or study.parts:
        part, source = study.part(name), folder / f"{name}-{args.scale}.csv"
        if not isinstance(part, Experiment) or name in COMPUTED_AGAIN or not source.exists():
            continue
        try:
            print(f"{source}: {convert(part, name, args.scale, source, folder)}")
        except ValueError as error:
            print(f"{source}: not converted: {error}", file=sys.stderr)
            code = 1
    return code


def convert(part: Experiment, name: str, scale: str, source: Path, folder: Path) -> str:
    """Convert one CSV; return how much it was.

    Raises:
        ValueError: it is of another form or damaged, a task of it is unknown, or a number differs.
    """
    rows = read_signed(source)
    tasks = {task.name: task for task in part.tasks(scale, ())}
    kinds = {column: kind_of(column, rows[column]) for column in rows.columns}
    names = COLUMNS.get(name, {})
    columns = {old: names.get(old, snake_case(old)) for old in rows.columns if old not in ORIGIN}
    numbers = 0
    for piece, group in rows.groupby("piece", sort=False):
        if piece not in tasks:
            raise ValueError(f"{piece!r} is no task of {name} at scale {scale}")
        origin = group.iloc[0]
        cells = [
            {new: cell(row[old], kinds[old]) for old, new in columns.items()}
            for row in group.to_dict("records")
        ]
        path = task_path(folder, name, scale, tasks[piece])
        TaskResult(
            name,
            scale,
            str(piece),
            task_key(name, tasks[piece]),
            tuple(cells),
            origin["commit"],
            origin["machine"],
            float(origin["seconds_in_all"]),
        ).write(path)
        numbers += compare(group, TaskResult.read(path), columns, kinds)
    missing = len(tasks) - rows["piece"].nunique()
    return f"{rows['piece'].nunique()} tasks, {numbers} equal numbers, {missing} tasks missing"


def read_signed(path: Path) -> pd.DataFrame:
    """The rows as words, their digests checked."""
    text = path.read_text(encoding="utf-8")
    rows = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False)
    if not set(ORIGIN) <= set(rows.columns):
        raise ValueError("it has no pieces with digests; it is not of the earlier version")
    for piece, group in rows.groupby("piece", sort=False):
        if set(group["digest"]) != {digest(group)}:
            raise ValueError(f"the rows of {piece!r} are not those that were written")
    return rows


def digest(rows: pd.DataFrame) -> str:
    """The digest that the earlier version wrote beside a piece's rows."""
    lines = rows.drop(columns="digest", errors="ignore").to_dict("records")
    content = [{name: cell for name, cell in line.items() if cell != ""} for line in lines]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def kind_of(name: str, column: pd.Series) -> str:
    """Whether a column holds numbers, truth values or words."""
    cells = [cell for cell in column if cell]
    if name not in WORDS and all(re.fullmatch(r"[-+]?(\d[\d.e+-]*|inf|nan)", c) for c in cells):
        return "number"
    return "truth" if cells and set(cells) <= {"True", "False"} else "word"


def cell(text: str, kind: str) -> Any:
    """A cell's value; what is empty is missing."""
    if text == "":
        return None
    if kind == "truth":
        return text == "True"
    if kind == "word":
        return text
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def compare(
    group: pd.DataFrame, stored: TaskResult, columns: Mapping[str, str], kinds: Mapping[str, str]
) -> int:
    """Compare what was stored with the CSV's text, cell by cell; return how many numbers."""
    numbers = 0
    if len(group) != len(stored.rows):
        raise ValueError(f"{stored.task}: {len(stored.rows)} rows of {len(group)} were stored")
    for line, row in zip(group.to_dict("records"), stored.rows, strict=True):
        for old, new in columns.items():
            text, value = line[old], row[new]
            is_number = kinds[old] == "number" and text != ""
            numbers += is_number
            if is_number:
                same = value == float(text) or (math.isnan(float(text)) and value is None)
            else:
                same = ("" if value is None else str(value)) == text
            if not same:
                raise ValueError(f"{stored.task}: {old} = {text!r} was stored as {value!r}")
    return numbers


if __name__ == "__main__":
    sys.exit(main())
