"""Rows of measurements: each in a process of its own, and kept in a file, so as to be made once.

A script that measures starts itself with ``--row`` and the row as JSON, and then prints what it
measured, as JSON, in its last line.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer
from bnrecon.features import LayerShape, choose_width, draw
from bnrecon.runtime import files, provenance
from bnrecon.solvers import SolverSpec, solve

ROW = {"help": argparse.SUPPRESS}  # the option for the processes that a script starts


def in_process(script: str, row: object, threads: int | None = None) -> dict:
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
    path: Path | None,
    wanted: Iterable[dict],
    measure: Callable[[dict], dict],
    fresh: bool = False,
) -> list[dict]:
    """Measure the rows that a file lacks; return all of its rows, and keep each once it is there.

    Args:
        path: the file; none keeps nothing.
        wanted: for each row what it is known by, as ``{"size": 16, "threads": 1}``.
        measure: measures a row; what it returns is added to what the row is known by, with the
            commit and the day.
        fresh: whether to measure the wanted rows that the file has again, in their place.

    A row that only has a note, on why it was not measured, is tried again. One whose process fails
    is told of and left out.
    """
    rows = []
    if path is not None and path.exists():
        try:
            rows = files.read_json(path)["rows"]
        except ValueError as error:
            files.quarantine(path, error)
    for about in wanted:
        same = [row for row in rows if about.items() <= row.items()]
        if same and not fresh and not any("note" in r and "seconds" not in r for r in same):
            continue
        origin = {"commit": provenance.commit(), "date": datetime.date.today().isoformat()}
        try:
            measured = about | measure(about) | origin
        except subprocess.CalledProcessError as error:
            name = " ".join(map(str, about.values()))
            print(f"{name}: failed with exit code {error.returncode}", file=sys.stderr, flush=True)
            continue
        rows = [row for row in rows if row not in same] + [measured]
        if path is not None:
            files.write_json(path, {"rows": rows})
    return rows


def memory_status(name: str) -> int:
    """A number of bytes that Linux tells about this process, as ``VmHWM``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


def square_layer(width: int) -> tuple[LayerShape, int]:
    """The shape of a layer of 3x3, c0 = c2 = width, and 1.5 n features."""
    shape = LayerShape(width, width, (3, 3))
    return shape, choose_width("sign", shape, 1.5)


def solve_random(features: str, width: int, storage: str) -> dict:
    """Draw the features of a square layer and solve it for a random target, timed."""
    shape, count = square_layer(width)
    torch.manual_seed(0)
    weight = torch.randn(width, width, 3, 3, dtype=torch.float64)
    target = TargetLayer("layer", weight, torch.zeros(width))
    started, spent = time.perf_counter(), time.process_time()
    pair = draw(features, shape, count, 0, 0, storage=storage)
    system = layer_system(target, pair, torch.device("cpu"), orthogonal=False)
    report = solve(system, SolverSpec("matrix_free")).report
    return {
        "n": shape.equations,
        "c1": count,
        "seconds": time.perf_counter() - started,
        "processor_seconds": time.process_time() - spent,
        "iterations": report.iterations,
        "residual": report.relative_residual,
        "products": report.precision,
    }
