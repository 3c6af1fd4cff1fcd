"""Rows of measurements: each is measured once, in its own process, stored, and tabulated."""

from __future__ import annotations

import datetime
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import yaml
from matplotlib.figure import Figure
from torch import nn

import bnrecon
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.reporting import figures, tables
from bnrecon.runtime import files, provenance
from bnrecon.runtime.environment import environment
from bnrecon.runtime.units import format_bytes
from bnrecon.solvers.base import Solution

CPU = torch.device("cpu")
TABLES = yaml.safe_load(Path(__file__).with_name("bench_tables.yaml").read_text(encoding="utf-8"))


def apart(call: Callable, *arguments: Any, threads: int | None = None) -> Any:
    """Call a module's function in a new process with so many threads; return its result."""
    variables = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    with environment(**variables), ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(call, *arguments).result()


def timed(call: Callable, *arguments: Any, **options: Any) -> tuple[Any, dict[str, float]]:
    """A call's result, with wall-clock and processor seconds; waits for a GPU."""
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    wait()
    started, spent = time.perf_counter(), time.process_time()
    result = call(*arguments, **options)
    wait()
    seconds, processor = time.perf_counter() - started, time.process_time() - spent
    return result, {"seconds": seconds, "processor_seconds": processor}


def measure_missing(path: Path, requested: Iterable[dict], measure: Callable) -> list[dict]:
    """Measure the rows that a file lacks; store each when it is done, and return all rows.

    ``requested`` has the keys of each row, as ``{"size": 16, "threads": 1}``; the result of
    ``measure`` is added, with the commit and the date. A row with only a note on why it was not
    measured is tried again. A row that fails is reported and skipped.
    """
    stored = files.read_if_valid(path, files.read_json, quarantine_damaged=True)
    rows = [] if stored is None else stored["rows"]
    for names in requested:
        same = [row for row in rows if names.items() <= row.items()]
        if same and not any("note" in row and "seconds" not in row for row in same):
            continue
        origin = {"commit": provenance.commit(), "date": datetime.date.today().isoformat()}
        words = " ".join(map(str, names.values()))
        try:
            measured = names | measure(names) | origin
        except Exception:
            print(f"{words}: failed\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            continue
        print(f"{words}: measured", file=sys.stderr, flush=True)
        rows = [row for row in rows if row not in same] + [measured]
        files.write_json(path, {"rows": rows})
    return rows


def write_table(path: Path, rows: Sequence[Mapping], **words: Any) -> None:
    """Write rows and words as Markdown, as defined in ``bench_tables.yaml``, and print it."""
    table = TABLES[path.stem]
    empty = {heading: {"": word} for heading, word in table.get("empty", {}).items()}
    columns = {name: [cell(row, each) for row in rows] for name, each in table["columns"].items()}
    frame = pd.DataFrame(columns, dtype=object).replace(empty)
    devices = {cell(row, "{device}, torch {torch}") for row in rows}
    words["devices"] = "; ".join(sorted(devices))
    text = f"{tables.markdown(frame)}\n\n{table['words'].format(**words)}\n"
    files.write_text(path, text)
    print(text)


def cell(row: Mapping[str, Any], template: str) -> str:
    """A template filled with a row's numbers; empty if one is missing."""
    try:
        numbers = {"memory": format_bytes(row["memory"])} if "memory" in row else {}
        return template.format(**row | numbers)
    except (KeyError, TypeError):  # missing, or None
        return ""


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG and as SVG."""
    for kind in ("png", "svg"):
        files.write_bytes(path.with_suffix(f".{kind}"), figures.image(figure, kind))


def memory_status(name: str) -> int:
    """A number of bytes from Linux's status of this process, as ``VmHWM``."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def random_layer(
    features: str,
    width: int,
    storage: str = "memory",
    solver: str = "matrix_free",
    oversampling: float | str = 1.5,
    device: torch.device = CPU,
    target: int = 0,
) -> PlannedLayer:
    """A 3x3 layer, c0 = c2 = width: features from seed 0, standard normal weights from ``target``.

    ``oversampling`` is c1 / n, or ``"minimum"`` for the minimum width.
    """
    torch.manual_seed(target)
    model = nn.Conv2d(width, width, 3, bias=False, device=device).eval()
    nn.init.normal_(model.weight)
    size = "width" if oversampling == "minimum" else "oversampling"
    spec = bnrecon.FeatureSpec(features, storage=storage, **{size: oversampling})
    return bnrecon.plan_layers(model, spec, solver).layers[0]


def timed_solve(layer: PlannedLayer, **options: Any) -> tuple[Solution, dict[str, Any]]:
    """Draw the features of a layer and solve it; return the solution and a row of measurements."""
    solution, seconds = timed(bnrecon.solve_layer, layer, **options)
    report, sizes = solution.report, {"n": layer.rows, "c1": layer.width}
    solved = {"iterations": report.iterations, "residual": report.relative_residual}
    return solution, sizes | seconds | solved | {"products": report.precision}
