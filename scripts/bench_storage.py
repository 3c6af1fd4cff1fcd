"""Features in memory, regenerated and on disk: time of the products, time and memory of a solve.

    python scripts/bench_storage.py                    # all tables: an hour on one core, 4 GB
    python scripts/bench_storage.py products --features sign --widths 64
    python scripts/bench_storage.py solves --features he_normal --widths 64 128
    python scripts/bench_storage.py --features sign --outputs FOLDER   # writes the tables there too

Layers of 3x3, c0 = c2 = width, with 1.5 n features. Products: the pair M x and M^T y that an
iteration takes in bf16, and a correction in float64, with features in memory and elsewhere in turn
on one thread; the medians of the processor's time and of the clock's, which differ on a busy
machine. Of layers too large to be stored next to their regenerated form only a run of the features
is measured. Solves: from a random target to 1e-10, each in a process of its own. Its memory is the
largest that it had allocated at any of the samples taken every 10 ms, above what it held before
features were drawn; what it maps from a file is not part of that. Prints both as Markdown; with
--outputs also writes products.{md,json} and solves.{md,json}, with the command.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench_rows import in_process, memory_status

LARGEST_SLICE = 65_536  # features of which products are measured
ROUNDS = 9


def shape_of(width: int):
    """The layer's shape, and its number of features."""
    from bnrecon.features import LayerShape, choose_width

    shape = LayerShape(width, width, (3, 3))
    return shape, choose_width("sign", shape)


def storages_of(features: str) -> tuple[str, ...]:
    """Where the features are measured: signs on disk would only take more room."""
    return ("memory", "regenerate") if features == "sign" else ("memory", "regenerate", "disk")


def time_products(name: str, width: int, precision: str) -> dict:
    """Medians of one pair of products, for each storage in turn."""
    import torch

    from bnrecon.features import draw
    from bnrecon.features.matrix import feature_operator
    from bnrecon.runtime import precision as precisions

    shape, features = shape_of(width)
    part, device = features if width < 256 else LARGEST_SLICE, torch.device("cpu")
    wanted = getattr(precisions, precision.upper())
    operators = {}
    for storage in storages_of(name):
        pair = draw(name, shape, part, 0, 0, storage=storage)
        operators[storage] = feature_operator(pair, torch.float64, device)
        if wanted is not precisions.FLOAT64:
            operators[storage] = operators[storage].to(wanted)
        del pair
    x, y = (torch.randn(size, dtype=wanted.vectors) for size in (part, shape.equations))
    clocks = {"cpu": time.process_time, "wall": time.perf_counter}
    times: dict = {(storage, clock): [] for storage in operators for clock in clocks}
    for _ in range(ROUNDS):
        for storage, operator in operators.items():
            before = {clock: read() for clock, read in clocks.items()}
            operator.matvec(x)
            operator.rmatvec(y)
            for clock, read in clocks.items():
                times[storage, clock].append(read() - before[clock])
    found = {
        f"{storage} {clock}": statistics.median(each) for (storage, clock), each in times.items()
    }
    return {"n": shape.equations, "c1": features, "measured": part} | found


def solve(name: str, width: int, storage: str) -> dict:
    """Solve one layer; seconds, iterations, residual and peak memory."""
    import torch

    from bnrecon.construction.residual import layer_system
    from bnrecon.construction.two_layer import TargetLayer
    from bnrecon.features import draw
    from bnrecon.solvers import SolverSpec
    from bnrecon.solvers import solve as solve_system

    shape, features = shape_of(width)
    torch.manual_seed(0)
    weight = torch.randn(shape.outputs, shape.inputs, *shape.kernel, dtype=torch.float64)
    target = TargetLayer("layer", weight, torch.zeros(shape.outputs))
    before, peak = memory_status("RssAnon"), [0]

    def watch() -> None:
        while True:
            peak[0] = max(peak[0], memory_status("RssAnon"))
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    started, spent = time.perf_counter(), time.process_time()
    pair = draw(name, shape, features, 0, 0, storage=storage)
    system = layer_system(target, pair, torch.device("cpu"), orthogonal=False)
    report = solve_system(system, SolverSpec("matrix_free")).report
    return {
        "n": shape.equations,
        "wall": time.perf_counter() - started,
        "cpu": time.process_time() - spent,
        "iterations": report.iterations,
        "residual": report.relative_residual,
        "memory": peak[0] - before,
    }


def products(features: list[str], widths: list[int], precisions: list[str]) -> Iterator[dict]:
    """Measure products; a row for each storage."""
    for name, width, precision in itertools.product(features, widths, precisions):
        row = in_process(__file__, ("products", name, width, precision), threads=1)
        for storage in storages_of(name):
            yield {
                "features": name,
                "width": width,
                "n": row["n"],
                "c1": row["c1"],
                "measured": row["measured"],
                "precision": precision,
                "storage": storage,
                "cpu": row[f"{storage} cpu"],
                "wall": row[f"{storage} wall"],
                "ratio": row[f"{storage} cpu"] / row["memory cpu"],
                "wall ratio": row[f"{storage} wall"] / row["memory wall"],
            }


def products_line(row: dict) -> dict:
    """A row of products in words."""
    part = "" if row["measured"] == row["c1"] else f" ({row['measured']:,} measured)"
    return {
        "features": row["features"],
        "width": row["width"],
        "n": f"{row['n']:,}",
        "c1": f"{row['c1']:,}{part}",
        "precision": row["precision"],
        "storage": row["storage"],
        "processor": f"{1e3 * row['cpu']:.0f} ms",
        "ratio": f"{row['ratio']:.2f}",
        "by the clock": f"{row['wall ratio']:.2f}",
    }


def solves(features: list[str], widths: list[int]) -> Iterator[dict]:
    """Measure solves; a row for each storage."""
    for name, width in itertools.product(features, widths):
        for storage in storages_of(name):
            row = in_process(__file__, ("solves", name, width, storage), threads=1)
            yield {"features": name, "width": width, "storage": storage, **row}


def solves_line(row: dict) -> dict:
    """A row of solves in words."""
    from bnrecon.runtime.units import format_bytes

    return {
        "features": row["features"],
        "width": row["width"],
        "n": f"{row['n']:,}",
        "storage": row["storage"],
        "processor": f"{row['cpu']:.1f} s",
        "clock": f"{row['wall']:.1f} s",
        "iterations": row["iterations"],
        "residual": f"{row['residual']:.1e}",
        "memory": format_bytes(row["memory"]),
    }


def report(
    section: str, rows: Iterable[dict], line: Callable[[dict], dict], outputs: Path | None
) -> None:
    """Show each row as it is measured, then all as a table; write it with its command."""
    import pandas as pd

    from bnrecon.reporting import tables
    from bnrecon.runtime import files

    found = []
    for row in rows:
        found.append(row)
        print(*line(row).values(), sep=" | ", file=sys.stderr, flush=True)
    table = tables.markdown(pd.DataFrame(map(line, found)))
    print(table, "\n")
    if outputs is None:
        return
    command = shlex.join(["python", "scripts/bench_storage.py", *sys.argv[1:]])
    load = f"One thread of {os.cpu_count()}; load {os.getloadavg()[0]:.1f} at the end."
    files.write_text(outputs / f"{section}.md", f"{table}\n\n{load} Command: `{command}`.\n")
    files.write_text(outputs / f"{section}.json", json.dumps(found, indent=1) + "\n")


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", default=["products", "solves"])
    parser.add_argument("--features", nargs="+", default=["sign", "he_normal"])
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--precisions", nargs="+", default=["bfloat16", "float64"])
    parser.add_argument("--outputs", type=Path, help="a folder for the tables")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        section, *about = json.loads(arguments.row)
        print(json.dumps({"products": time_products, "solves": solve}[section](*about)))
        return
    load = os.getloadavg()[0]
    print(f"One thread of {os.cpu_count()}, load {load:.1f} when it started.\n")
    asked = arguments.features, arguments.widths
    if "products" in arguments.sections:
        rows = products(*asked, arguments.precisions)
        report("products", rows, products_line, arguments.outputs)
    if "solves" in arguments.sections:
        smaller = [width for width in arguments.widths if width < 256]
        rows = solves(arguments.features, smaller)
        report("solves", rows, solves_line, arguments.outputs)


if __name__ == "__main__":
    main()
