"""Rows of measurements: each measured once, in a process of its own, kept in a file, and tabulated.

A script that measures starts itself with ``--row`` and the row as JSON, and then prints what it
measured, as JSON, in its last line.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import command_line
import pandas as pd
import torch
from matplotlib.figure import Figure

from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer
from bnrecon.features import LayerShape, choose_width, draw
from bnrecon.operators.system import System
from bnrecon.reporting import figures, tables
from bnrecon.runtime import files, provenance
from bnrecon.runtime.units import format_bytes
from bnrecon.solvers import SolverSpec, solve

BYTES = ("memory", "peak_memory")  # what a row has in bytes


def parse(
    doc: str | None, measure: Callable[[dict], dict], *names: str, **options: Any
) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The command line of a script; a process that is to measure a row does so, and ends."""
    parser = command_line.parser(doc, *names, **options, row={"help": argparse.SUPPRESS})
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measure(json.loads(args.row))))
        raise SystemExit
    return parser, args


def in_process(script: str, row: dict, threads: int | None = None) -> dict:
    """Measure a row in a process of its own, on so many threads.

    Raises:
        subprocess.CalledProcessError: the process failed.
    """
    environment = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, script, "--row", json.dumps(row)],
        env=os.environ | environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure_missing(
    path: Path, wanted: Iterable[dict], measure: Callable[[dict], dict]
) -> list[dict]:
    """Measure the rows that a file lacks; return all of its rows, and keep each once it is there.

    Args:
        path: the file; a row that is removed from it is measured again.
        wanted: for each row what it is known by, as ``{"size": 16, "threads": 1}``.
        measure: measures a row; what it returns is added to what the row is known by, with the
            commit and the day.

    A row that only has a note, on why it was not measured, is tried again. One whose process fails
    is told of and left out.
    """
    stored = files.read_if_valid(path, files.read_json, quarantine_damaged=True)
    rows = [] if stored is None else stored["rows"]
    for names in wanted:
        same = [row for row in rows if names.items() <= row.items()]
        if same and not any("note" in row and "seconds" not in row for row in same):
            continue
        origin = {"commit": provenance.commit(), "date": datetime.date.today().isoformat()}
        words = " ".join(map(str, names.values()))
        try:
            measured = names | measure(names) | origin
        except subprocess.CalledProcessError as error:
            print(f"{words}: failed with exit code {error.returncode}", file=sys.stderr, flush=True)
            continue
        print(f"{words}: measured", file=sys.stderr, flush=True)
        rows = [row for row in rows if row not in same] + [measured]
        files.write_json(path, {"rows": rows})
    return rows


def table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    """Rows in words.

    >>> table([{"n": 2304, "memory": 5e8}, {"n": 576}], {"equations": "{n:,}", "GB": "{memory}"})
      equations      GB
    0     2,304  0.5 GB
    1       576

    Args:
        rows: numbers by name.
        columns: by heading, how a row's cell is written; it is empty where the row lacks a number.
    """
    lines: list[dict[str, str]] = []
    for row in rows:
        there = {name: value for name, value in row.items() if value is not None}
        there |= {name: format_bytes(there[name]) for name in BYTES if name in there}
        lines.append({})
        for heading, template in columns.items():
            with contextlib.suppress(KeyError):
                lines[-1][heading] = template.format(**there)
    return pd.DataFrame(lines, columns=list(columns), dtype=object).fillna("")


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG and as SVG."""
    for kind in ("png", "svg"):
        files.write_bytes(path.with_suffix(f".{kind}"), figures.image(figure, kind))


def write_table(
    path: Path, rows: Iterable[Mapping], columns: Mapping[str, str], words: str
) -> None:
    """Write a table and what there is to say of it as Markdown, and print it."""
    text = f"{tables.markdown(table(rows, columns))}\n\n{words}\n"
    files.write_text(path, text)
    print(text)


def memory_status(name: str) -> int:
    """A number of bytes that Linux tells about this process, as ``VmHWM``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


def random_system(
    features: str,
    width: int,
    oversampling: float | str = 1.5,
    storage: str = "memory",
    device: torch.device | None = None,
) -> System:
    """The system of a 3x3 layer, c0 = c2 = width: a standard normal target, features from seed 0.

    Args:
        features: their distribution.
        width: of the layer.
        oversampling: c1 / n, or ``"minimum"`` for the minimum width.
        storage: where the features are.
        device: where the system is; on the processor by default.
    """
    shape = LayerShape(width, width, (3, 3))
    minimum = oversampling == "minimum"
    count = shape.minimum_width if minimum else choose_width(features, shape, oversampling)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(width, width, 3, 3, dtype=torch.float64, generator=generator)
    target = TargetLayer("layer", weight, torch.zeros(width))
    pair = draw(features, shape, count, 0, 0, storage=storage)
    return layer_system(target, pair, device or torch.device("cpu"), orthogonal=False)


def solve_random(features: str, width: int, storage: str) -> dict:
    """Draw the features of a layer and solve it for a random target, timed."""
    started, spent = time.perf_counter(), time.process_time()
    system = random_system(features, width, storage=storage)
    report = solve(system, SolverSpec("matrix_free")).report
    return {
        "n": system.operator.shape[0],
        "c1": system.operator.shape[1],
        "seconds": time.perf_counter() - started,
        "processor_seconds": time.process_time() - spent,
        "iterations": report.iterations,
        "residual": report.relative_residual,
        "products": report.precision,
    }
