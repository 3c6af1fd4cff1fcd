"""Rows of measurements: each measured once, in a process of its own, kept, and tabulated."""

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

from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer
from bnrecon.features import LayerShape, choose_width, draw
from bnrecon.features.register import distribution
from bnrecon.operators.system import System
from bnrecon.reporting import figures, tables
from bnrecon.runtime import files, provenance
from bnrecon.runtime.environment import environment
from bnrecon.runtime.units import format_bytes
from bnrecon.solvers import SolverSpec, solve

TABLES = yaml.safe_load(Path(__file__).with_name("bench_tables.yaml").read_text(encoding="utf-8"))


def apart(call: Callable, *arguments: Any, threads: int | None = None) -> Any:
    """What a function of a module returns, called in a process of its own, on so many threads."""
    variables = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    with environment(**variables), ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(call, *arguments).result()


def timed(call: Callable, *arguments: Any) -> tuple[Any, dict[str, float]]:
    """What a call returns, with its seconds by the clock and the processor's; waits for a GPU."""
    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    wait()
    started, spent = time.perf_counter(), time.process_time()
    result = call(*arguments)
    wait()
    seconds, processor = time.perf_counter() - started, time.process_time() - spent
    return result, {"seconds": seconds, "processor_seconds": processor}


def measure_missing(path: Path, wanted: Iterable[dict], measure: Callable) -> list[dict]:
    """Measure the rows that a file lacks; return all of its rows, and keep each once it is there.

    ``wanted`` tells what each row is known by, as ``{"size": 16, "threads": 1}``; what ``measure``
    makes of it is added, with the commit and the day. A row that only has a note, on why it was not
    measured, is tried again. One that fails is told of and left out.
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
        except Exception:
            print(f"{words}: failed\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            continue
        print(f"{words}: measured", file=sys.stderr, flush=True)
        rows = [row for row in rows if row not in same] + [measured]
        files.write_json(path, {"rows": rows})
    return rows


def write_table(path: Path, rows: Sequence[Mapping], **words: Any) -> pd.DataFrame:
    """Write rows and words as Markdown, as ``bench_tables.yaml`` says, and print it; the cells."""
    templates, below = TABLES[path.stem]["columns"], TABLES[path.stem]["words"].format(**words)
    columns = {heading: [cell(row, each) for row in rows] for heading, each in templates.items()}
    empty = {heading: {"": word} for heading, word in TABLES[path.stem].get("empty", {}).items()}
    frame = pd.DataFrame(columns, dtype=object).replace(empty)
    text = f"{tables.markdown(frame)}\n\n{below}\n"
    files.write_text(path, text)
    print(text)
    return frame


def cell(row: Mapping[str, Any], template: str) -> str:
    """A template filled with a row's numbers; nothing where it lacks one."""
    try:
        numbers = {"memory": format_bytes(row["memory"])} if "memory" in row else {}
        return template.format(**row | numbers)
    except (KeyError, TypeError):  # not there, or None
        return ""


def write_figure(path: Path, figure: Figure) -> None:
    """Write a figure as PNG and as SVG."""
    for kind in ("png", "svg"):
        files.write_bytes(path.with_suffix(f".{kind}"), figures.image(figure, kind))


def memory_status(name: str) -> int:
    """A number of bytes that Linux tells about this process, as ``VmHWM``."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) * 1024


def random_system(
    features: str, width: int, oversampling: float | str, device: torch.device, storage="memory"
) -> System:
    """The system of a 3x3 layer, c0 = c2 = width: a standard normal target, features from seed 0.

    ``oversampling`` is c1 / n, or ``"minimum"`` for the minimum width.
    """
    shape = LayerShape(width, width, (3, 3))
    minimum = oversampling == "minimum"
    count = shape.minimum_width if minimum else choose_width(features, shape, oversampling)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(width, width, 3, 3, dtype=torch.float64, generator=generator)
    target = TargetLayer("layer", weight, torch.zeros(width))
    pair = draw(features, shape, count, 0, 0, storage=storage)
    return layer_system(target, pair, device, distribution(features).orthogonal)


def solve_random(
    features: str, width: int, storage: str, solver: str = "matrix_free", oversampling: float = 1.5
) -> dict:
    """Draw the features of a layer and solve it for a random target, timed."""

    def rebuild() -> tuple[System, Any]:
        system = random_system(features, width, oversampling, torch.device("cpu"), storage)
        return system, solve(system, SolverSpec(solver)).report

    (system, report), seconds = timed(rebuild)
    n, c1 = system.operator.shape
    solved = {"iterations": report.iterations, "residual": report.relative_residual}
    return {"n": n, "c1": c1} | seconds | solved | {"products": report.precision}
