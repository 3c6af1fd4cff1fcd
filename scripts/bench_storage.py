#!/usr/bin/env python3
"""Regenerated features against stored ones: time of the products, time and memory of a solve.

    python scripts/bench_storage.py                    # both tables: 15 min on one core, 3 GB
    python scripts/bench_storage.py products --widths 64
    python scripts/bench_storage.py solves --widths 64 128

Layers of 3x3, c0 = c2 = width, features sign with 1.5 n of them. Products: the pair M x and M^T y
that an iteration takes, stored and regenerated in turn on one thread; the medians of the
processor's time and of the clock's, which differ on a busy machine. Of layers too large to be
stored next to their regenerated form only a run of the features is measured. Solves: from a random
target to 1e-10, each in a process of its own, which measures its peak memory above what it held
before features were drawn. Prints both as Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

LARGEST_SLICE = 65_536  # features of which products are measured
ROUNDS = 9


def shape_of(width: int):
    """The layer's shape, and its number of features."""
    from bnrecon.features import LayerShape, choose_width

    shape = LayerShape(width, width, (3, 3))
    return shape, choose_width("sign", shape)


def time_products(width: int, precision: str) -> dict:
    """Medians of one pair of products, stored and regenerated in turn."""
    import torch

    from bnrecon.features import draw
    from bnrecon.features.matrix import feature_operator
    from bnrecon.runtime import precision as precisions

    shape, features = shape_of(width)
    part, device = features if width < 256 else LARGEST_SLICE, torch.device("cpu")
    wanted = getattr(precisions, precision.upper())
    operators = {}
    for name, regenerate in (("stored", False), ("regenerated", True)):
        pair = draw("sign", shape, part, 0, 0, regenerate=regenerate)
        single = torch.float64 if precision == "float64" else torch.float32
        operators[name] = feature_operator(pair, single, device).to(wanted)
        del pair
    x, y = (torch.randn(size, dtype=wanted.vectors) for size in (part, shape.equations))
    clocks = {"cpu": time.thread_time, "wall": time.perf_counter}
    times: dict = {(name, clock): [] for name in operators for clock in clocks}
    for _ in range(ROUNDS):
        for name, operator in operators.items():
            before = {clock: read() for clock, read in clocks.items()}
            operator.matvec(x)
            operator.rmatvec(y)
            for clock, read in clocks.items():
                times[name, clock].append(read() - before[clock])
    found = {f"{name} {clock}": statistics.median(each) for (name, clock), each in times.items()}
    about = {"width": width, "n": shape.equations, "c1": features, "measured": part}
    return about | {"precision": precision} | found


def solve(width: int, regenerate: bool) -> dict:
    """Solve one layer; seconds, iterations, residual and peak memory."""
    import torch

    from bnrecon.construction.two_layer import TargetLayer, two_layer_system
    from bnrecon.features import draw
    from bnrecon.solvers import SolverSpec
    from bnrecon.solvers import solve as solve_system

    shape, features = shape_of(width)
    torch.manual_seed(0)
    weight = torch.randn(shape.outputs, shape.inputs, *shape.kernel, dtype=torch.float64)
    target = TargetLayer("layer", weight, torch.zeros(shape.outputs))
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    started, spent = time.perf_counter(), time.process_time()
    pair = draw("sign", shape, features, 0, 0, regenerate=regenerate)
    system = two_layer_system(target, pair, torch.device("cpu"), orthogonal=False)
    report = solve_system(system, SolverSpec("matrix_free")).report
    return {
        "width": width,
        "n": shape.equations,
        "c1": features,
        "features": "regenerated" if regenerate else "stored",
        "wall": time.perf_counter() - started,
        "cpu": time.process_time() - spent,
        "iterations": report.iterations,
        "residual": report.relative_residual,
        "memory": status("VmHWM") - before,
    }


def status(name: str) -> int:
    """A number of bytes that Linux tells about this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")


def in_process(section: str, *arguments: object) -> dict:
    """Measure one row in a process of its own, on one thread."""
    command = [sys.executable, __file__, "--row", json.dumps([section, *arguments])]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def products_table(widths: list[int], precisions: list[str]) -> list[str]:
    """Lines of the table of products."""
    lines = [
        "| width | n | c1 | precision | stored | regenerated | ratio | ratio by the clock |",
        "|---:|---:|---:|:---|---:|---:|---:|---:|",
    ]
    for width in widths:
        for precision in precisions:
            row = in_process("products", width, precision)
            part = "" if row["measured"] == row["c1"] else f" ({row['measured']:,} measured)"
            ratios = (row[f"regenerated {by}"] / row[f"stored {by}"] for by in ("cpu", "wall"))
            cells = [
                f"{width}",
                f"{row['n']:,}",
                f"{row['c1']:,}{part}",
                precision,
                *(f"{1e3 * row[f'{name} cpu']:.0f} ms" for name in ("stored", "regenerated")),
                *(f"{ratio:.2f}" for ratio in ratios),
            ]
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def solves_table(widths: list[int]) -> list[str]:
    """Lines of the table of solves."""
    from bnrecon.runtime.hardware import format_bytes

    lines = [
        "| width | n | features | processor | clock | iterations | residual | peak memory |",
        "|---:|---:|:---|---:|---:|---:|---:|---:|",
    ]
    for width in widths:
        for regenerate in (False, True):
            row = in_process("solves", width, regenerate)
            cells = [
                f"{width}",
                f"{row['n']:,}",
                row["features"],
                f"{row['cpu']:.1f} s",
                f"{row['wall']:.1f} s",
                str(row["iterations"]),
                f"{row['residual']:.1e}",
                format_bytes(row["memory"]),
            ]
            lines.append(f"| {' | '.join(cells)} |")
            print(lines[-1], file=sys.stderr, flush=True)
    return lines


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", default=["products", "solves"])
    parser.add_argument("--widths", nargs="+", type=int, default=[64, 128, 256])
    parser.add_argument("--precisions", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        section, *about = json.loads(arguments.row)
        print(json.dumps({"products": time_products, "solves": solve}[section](*about)))
        return
    load = os.getloadavg()[0]
    print(f"One thread of {os.cpu_count()}, load {load:.1f} when it started.\n")
    if "products" in arguments.sections:
        print("\n".join(products_table(arguments.widths, arguments.precisions)), "\n")
    if "solves" in arguments.sections:
        print("\n".join(solves_table([width for width in arguments.widths if width < 256])))


if __name__ == "__main__":
    main()
