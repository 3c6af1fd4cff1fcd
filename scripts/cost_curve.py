#!/usr/bin/env python3
"""Seconds to rebuild a layer against its number of equations n, beside a dense LU of n equations.

    python scripts/cost_curve.py                      # widths 16 to 128 and LUs to n = 9,216: 4 min
    python scripts/cost_curve.py --widths 256 --threads 2       # n = 589,824: 8 min
    python scripts/cost_curve.py --run outputs/runs/NAME        # with the layers of a run
    python scripts/cost_curve.py --widths 16 32 --lu 2304       # some sizes only: 10 s

Layers of 3x3, c0 = c2 = width, n = 9 width², 1.5 n features sign, regenerated, solved to 1e-10 for
a random target. LU: torch.linalg.lu_factor in float64; beyond the largest one measured it is drawn
on as n³, dashed. Each row in a process of its own, on --threads threads; the machine should be
idle, or see the processor's time. --run takes the layers of a finished run, with the median of each
size. Resumable: rows that are there are not measured again. Table and figure show the rows of
--threads threads. Results: cost_curve.{json,md,png,svg} in --outputs.
"""

from __future__ import annotations

import functools
import statistics
from collections import defaultdict
from pathlib import Path

import bench_rows
import command_line
import torch
from bench_rows import apart, measure_missing, memory_status, solve_random, timed

from bnrecon.reporting import figures
from bnrecon.reporting.result import RunResult
from bnrecon.runtime import files


def main() -> None:
    """Measure what is missing, read the run, write table and figure."""
    # The largest LU takes seconds and half a GB; 36,864 takes a quarter of an hour and 12 GB.
    options = {"widths": [16, 32, 64, 128], "lu": [576, 2_304, 9_216], "run": "", "threads": 1}
    parser = command_line.parser(__doc__, **options, outputs=Path("outputs/solvers/cost_curve"))
    args = parser.parse_args()
    path = args.outputs / "cost_curve.json"
    sizes = [("layer", width) for width in args.widths] + [("LU", n) for n in args.lu]
    wanted = [{"name": name, "size": size, "threads": args.threads} for name, size in sizes]
    rows = measure_missing(path, wanted, functools.partial(apart, measure, threads=args.threads))
    if args.run:
        try:
            rows = [row for row in rows if row["name"] != "run"] + run_rows(Path(args.run))
        except (FileNotFoundError, files.Damaged) as error:
            parser.error(f"--run {args.run}: no finished run ({error})")
        files.write_json(path, {"rows": rows})
    rows = [row for row in rows if row.get("threads", args.threads) == args.threads]
    if not rows:
        parser.error("no rows; give --widths, --lu or --run")
    rows.sort(key=lambda row: (row["name"], row["n"]))
    whats = {"layer": "a layer", "LU": "LU, float64", "run": "a layer of {} (median of {})"}
    for row in rows:
        run = Path(row.get("run", "")).name
        row["what"] = whats[row["name"]].format(run, row.get("layers"))
    runs = sorted({row["run"] for row in rows if "run" in row})
    words = {"runs": "".join(f" --run {run}" for run in runs), "threads": args.threads}
    for kind in ("layer", "LU"):
        words[kind] = " ".join(str(row["size"]) for row in rows if row["name"] == kind)
    bench_rows.write_table(args.outputs / "cost_curve.md", rows, **words)
    bench_rows.write_figure(args.outputs / "cost_curve", draw(rows))


def measure(row: dict) -> dict:
    """Measure one row, with the most memory that this process ever held."""
    if row["name"] == "layer":
        measured = solve_random("sign", row["size"], "regenerate")
    else:
        torch.manual_seed(0)
        matrix = torch.randn(row["size"], row["size"], dtype=torch.float64)  # memory is touched
        measured = {"n": row["size"]} | timed(torch.linalg.lu_factor, matrix)[1]
    return measured | {"peak_memory": memory_status("VmHWM")}


def run_rows(folder: Path) -> list[dict]:
    """The median of the layers of each size of a finished run."""
    sizes = defaultdict(list)
    for layer in RunResult.read(folder / "result.json").layers:
        sizes[layer.equations, layer.width].append(layer)
    rows = []
    for (n, width), same in sorted(sizes.items()):
        row = {"name": "run", "size": width, "n": n, "c1": width, "layers": len(same)}
        row["seconds"] = statistics.median(layer.seconds for layer in same)
        row["iterations"] = statistics.median_low(layer.iterations for layer in same)
        row["residual"] = max(layer.residual for layer in same)
        rows.append(row | {"run": folder.as_posix()})
    return rows


def draw(rows: list[dict]):
    """Both curves, logarithmic; what was not measured is dashed."""
    blue, red = figures.PALETTE[0], figures.PALETTE[3]
    curves = (
        ("layer", "o-", blue, "a layer to 1e-10"),
        ("run", "s", blue, "layers of a run"),
        ("LU", "o-", red, "LU, float64, measured"),
    )
    with figures.style():
        figure, axes = figures.new_figure(size=(figures.PAGE, 4))
        for name, style, color, label in curves:
            points = [(row["n"], row["seconds"]) for row in rows if row["name"] == name]
            if points:
                axes.loglog(*zip(*points, strict=True), style, color=color, label=label)
            if points and name == "LU":
                n, seconds = points[-1]
                end = max(row["n"] for row in rows)
                beyond = (n, end), (seconds, seconds * (end / n) ** 3)
                axes.loglog(*beyond, "--", color=red, label="LU drawn on as n³, not measured")
        # Layers of a run have sizes between these, whose labels would overlap.
        sizes = sorted({row["n"] for row in rows if row["name"] != "run"} or {r["n"] for r in rows})
        axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
        axes.minorticks_off()
        axes.set(xlabel="n, equations of a layer", ylabel="seconds")
        axes.legend()
    return figure


if __name__ == "__main__":
    main()
