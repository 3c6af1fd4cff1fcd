#!/usr/bin/env python3
"""Seconds and memory to rebuild a layer against its n equations, by solver and distribution.

    python scripts/cost_curve.py                        # everything: 13 min on two cores, 12 GB
    python scripts/cost_curve.py refined sign           # some solvers and distributions only
    python scripts/cost_curve.py --largest 32           # widths up to 32 only

3x3 layers, c0 = c2 = width, n = 9 width², of a random target, to 1e-10. Solvers use he_normal
features, distributions solver=auto. c1 is 1.5 n, or n for solvers of square systems and orthogonal
M. Seconds include drawing; memory is the process's peak, beyond what it held before. Dotted lines
are operations over the measured rate of a matrix product. Each row runs in its own process, on
--threads threads; the machine should be idle, otherwise see the processor's time. Resumable:
existing rows are not measured again. Results: cost_curve.{json,md,png,svg} in --outputs.
"""

from __future__ import annotations

import functools
from pathlib import Path

import bench_rows
import command_line
import torch
from bench_rows import CPU, TABLES, measure_missing, memory_status, random_layer, timed_solve

from bnrecon.features.register import distribution
from bnrecon.reconstruction.duration import rate
from bnrecon.reporting import figures
from bnrecon.runtime.hardware import describe_device
from bnrecon.solvers.iterative import expected_iterations
from bnrecon.solvers.register import SOLVERS

PANELS = TABLES["cost_curve"]["panels"]  # the widths of each method, by panel
WIDTHS = {method: widths for panel in PANELS.values() for method, widths in panel.items()}
BOUNDS = {
    "bf16 products of 114 iterations": torch.bfloat16,
    "float32 LU at torch.matmul's rate": torch.float32,
}


def main() -> None:
    """Measure what is missing, write table and figure."""
    options = {"largest": 256, "threads": 1, "outputs": Path("outputs/solvers/cost_curve")}
    choices = {"methods": WIDTHS}
    args = command_line.parser(__doc__, "methods*", choices=choices, **options).parse_args()
    requested = [
        {"method": method, "width": width, "threads": args.threads}
        for method, widths in WIDTHS.items()
        for width in widths
        if width <= args.largest and method in (args.methods or WIDTHS)
    ]
    call = functools.partial(bench_rows.apart, measure, threads=args.threads)
    rows = measure_missing(args.outputs / "cost_curve.json", requested, call)
    rows = [row for row in rows if row["threads"] == args.threads]
    rows.sort(key=lambda row: ([*WIDTHS].index(row["method"]), row["n"]))
    bench_rows.write_table(args.outputs / "cost_curve.md", rows, threads=args.threads)
    bench_rows.write_figure(args.outputs / "cost_curve", draw(rows))


def measure(row: dict) -> dict:
    """Measure one row, with this process's peak memory."""
    method, machine = row["method"], {"device": describe_device(CPU), "torch": torch.__version__}
    if method in BOUNDS:
        n = 9 * row["width"] ** 2
        products = 4 * n * (1.5 * n) * expected_iterations(1.5, 1e-10)
        operations = products if BOUNDS[method] == torch.bfloat16 else 2 / 3 * n**3
        return machine | {"n": n, "seconds": operations / rate(BOUNDS[method], CPU)}
    features, solver = ("he_normal", method) if method in SOLVERS else (method, "auto")
    square = SOLVERS[solver].square if method in SOLVERS else distribution(features).orthogonal
    storage = "regenerate" if features == "sign" else "memory"
    how = storage, solver, 1.0 if square else 1.5
    timed_solve(random_layer(features, 2, *how))  # loads what it needs, which takes seconds once
    before = memory_status("VmRSS")
    _, measured = timed_solve(random_layer(features, row["width"], *how))
    return machine | measured | {"memory": memory_status("VmHWM") - before}


def draw(rows: list[dict]):
    """A column for solvers and one for distributions: seconds above, memory below."""
    with figures.style():
        figure, grid = figures.new_figure(2, 2, (figures.PAGE, 7.2), sharex="col", sharey="row")
        for (seconds, memory), (title, methods) in zip(grid.T, PANELS.items(), strict=True):
            for number, method in enumerate(methods):
                points = [row for row in rows if row["method"] == method]
                n, times = [row["n"] for row in points], [row["seconds"] for row in points]
                if method in BOUNDS:
                    seconds.loglog(n, times, ":", color="black", label=method)
                    continue
                line = "o-" if number < len(figures.PALETTE) else "s--"
                color = figures.PALETTE[number % len(figures.PALETTE)]
                seconds.loglog(n, times, line, color=color, label=method)
                memory.loglog(n, [row["memory"] / 1e9 for row in points], line, color=color)
            seconds.set_title(title)
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.17), "ncols": 2}
            memory.legend(*seconds.get_legend_handles_labels(), **below)
            memory.set_xlabel("n, equations of a layer")
        grid[0, 0].set_ylabel("seconds")
        grid[1, 0].set_ylabel("GB")
    return figure


if __name__ == "__main__":
    main()
