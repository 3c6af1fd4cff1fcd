#!/usr/bin/env python3
"""Seconds to rebuild a layer against its number of equations n, beside a dense LU of n equations.

    python scripts/cost_curve.py                      # widths 16 to 128 and LUs to n = 9,216: 4 min
    python scripts/cost_curve.py --widths 256 --threads 2       # n = 589,824: 8 min
    python scripts/cost_curve.py --run outputs/runs/NAME        # with the layers of a run
    python scripts/cost_curve.py --widths 16 32 --lu 2304       # some sizes only: 10 s

Layers of 3x3, c0 = c2 = width, n = 9 width², 1.5 n features sign, regenerated, solved to 1e-10 for
a random target. LU: torch.linalg.lu_factor in float64, which no more than 1e-10 needs; beyond the
largest one measured it is drawn on as n³, dashed. Each row in a process of its own, on --threads
threads; the machine should be idle, or see the processor's time. --run takes the layers of a run
that is finished, or those that one at work with 1.5 n features has solved, with the median of each
size. Resumable: rows that are there are not measured again (--fresh measures the sizes that are
asked for again). Table and figure show the rows of --threads threads. Results:
cost_curve.{json,md,png,svg} in --outputs.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from pathlib import Path

import command_line
import pandas as pd
import torch
from bench_rows import ROW, in_process, measure_missing, memory_status, solve_random

from bnrecon.reporting import figures, tables
from bnrecon.reporting.result import RunResult
from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.units import format_bytes

LARGEST_LU = 9_216  # in seconds and half a GB; 36,864 takes a quarter of an hour and 12 GB
OVERSAMPLING = 1.5


def main() -> int:
    """Measure what is missing, read the run, write table and figure."""
    args = command_line.parser(
        __doc__,
        widths=[16, 32, 64, 128],
        lu=[576, 2_304, LARGEST_LU],
        run={"type": Path, "help": "folder of a run with features=sign"},
        threads=1,
        fresh=False,
        outputs=Path("outputs/solvers/cost_curve"),
        row=ROW,
    ).parse_args()
    if args.row:
        name, size = json.loads(args.row)
        row = solve_random("sign", size, "regenerate") if name == "layer" else factorize(size)
        print(json.dumps(row | {"peak_memory": memory_status("VmHWM")}))
        return 0
    path = args.outputs / "cost_curve.json"
    sizes = [("layer", width) for width in args.widths] + [("LU", n) for n in args.lu]
    wanted = [{"name": name, "size": size, "threads": args.threads} for name, size in sizes]
    rows = measure_missing(path, wanted, measure, args.fresh)
    try:
        if args.run:
            rows = [row for row in rows if row["name"] != "run"] + run_rows(args.run)
            files.write_json(path, {"rows": rows})
    except UserError as error:
        print(f"cost_curve: {error}", file=sys.stderr)
        return 2
    rows = [row for row in rows if row.get("threads", args.threads) == args.threads]
    if not rows:
        print("cost_curve: no rows; give --widths, --lu or --run", file=sys.stderr)
        return 2
    print(write_report(sorted(rows, key=lambda row: (row["name"], row["n"])), args.outputs))
    return 0


def measure(about: dict) -> dict:
    """Measure one row in a process of its own, with the most memory that it ever held."""
    row = in_process(__file__, (about["name"], about["size"]), about["threads"])
    print(f"{about['name']} n = {row['n']:,}: {row['seconds']:.3g} s", file=sys.stderr, flush=True)
    return row


def factorize(n: int) -> dict:
    """Factorize a random matrix, its memory being touched before."""
    torch.manual_seed(0)
    matrix = torch.randn(n, n, dtype=torch.float64)
    started, spent = time.perf_counter(), time.process_time()
    torch.linalg.lu_factor(matrix)
    seconds, processor = time.perf_counter() - started, time.process_time() - spent
    return {"n": n, "seconds": seconds, "processor_seconds": processor}


def run_rows(folder: Path) -> list[dict]:
    """The median of the layers of each size of a run, finished or at work."""
    result = files.read_if_valid(folder / "result.json", RunResult.read)
    if result is not None:
        layers = [
            (each.equations, each.width, each.seconds, each.iterations, each.residual)
            for seed in result.seeds
            for each in seed.layers
        ]
    else:
        require_oversampling(folder)
        paths = sorted(folder.glob("seed-*/layer-*.safetensors"))
        read = [files.read_if_valid(path, solved_layer) for path in paths]
        layers = [layer for layer in read if layer is not None]  # others ended, or are damaged
    if not layers:
        raise UserError(f"--run {folder}: holds no result and no solved layer")
    rows = []
    for (n, width), same in itertools.groupby(sorted(layers), key=lambda layer: layer[:2]):
        _, _, seconds, iterations, residuals = zip(*same, strict=True)
        rows.append(
            {
                "name": "run",
                "size": width,
                "n": n,
                "c1": width,
                "layers": len(seconds),
                "seconds": statistics.median(seconds),
                "iterations": statistics.median_low(iterations),
                "residual": max(residuals),
                "run": folder.as_posix(),
            }
        )
    return rows


def require_oversampling(folder: Path) -> None:
    """Raise ``UserError`` where a run at work has not 1.5 n features sign: nothing tells n."""
    config = folder / "config.json"
    if config.exists():
        features = json.loads(config.read_text(encoding="utf-8"))["features"]
        usual = features["oversampling"] in (None, OVERSAMPLING) and features["excess"] is None
        if features["name"] != "sign" or not usual:
            raise UserError(f"--run {folder}: not of 1.5 n features sign; wait for its end")


def solved_layer(path: Path) -> tuple[int, int, float, int, float]:
    """Equations, features, seconds, iterations and residual of a layer of a run at work."""
    tensors, metadata = files.read_tensors(path)
    report, features = metadata["report"], len(tensors["scale"])
    told = (report[name] for name in ("seconds", "iterations", "relative_residual"))
    return (round(features / OVERSAMPLING), features, *told)


def write_report(rows: list[dict], folder: Path) -> str:
    """Write the table and the figure; the table."""
    names = {"layer": "a layer", "LU": "LU, float64"}
    frame = pd.DataFrame(
        {
            "what": names.get(row["name"])
            or f"a layer of {Path(row['run']).name} (median of {row['layers']})",
            "n": f"{row['n']:,}",
            "c1": f"{row['c1']:,}" if "c1" in row else "",
            "seconds": f"{row['seconds']:.3g}",
            "processor": f"{row['processor_seconds']:.3g}" if "processor_seconds" in row else "",
            "threads": str(row.get("threads", "")),
            "iterations": str(row.get("iterations", "")),
            "products": row.get("products", ""),
            "residual": f"{row['residual']:.1e}" if "residual" in row else "",
            "memory": format_bytes(row["peak_memory"]) if "peak_memory" in row else "",
        }
        for row in rows
    ).astype(object)
    about = (
        "A layer: features sign, regenerated, 1.5 n of them, to 1e-10. Seconds are the clock's, "
        "beside the processor's; memory is the most that the process held. "
        f"Command: `{command_of(rows)}`."
    )
    text = f"{tables.markdown(frame)}\n\n{about}\n"
    files.write_text(folder / "cost_curve.md", text)
    picture = draw(rows)
    for kind in ("png", "svg"):
        files.write_bytes(folder / f"cost_curve.{kind}", figures.image(picture, kind))
    return text


def command_of(rows: list[dict]) -> str:
    """The command that measures these rows."""
    words = ["python scripts/cost_curve.py"]
    for option, name in (("--widths", "layer"), ("--lu", "LU")):
        words += [option, *(str(row["size"]) for row in rows if row["name"] == name)]
    words += [f"--run {run}" for run in sorted({row["run"] for row in rows if "run" in row})]
    threads = {row["threads"] for row in rows if "threads" in row}
    words += [f"--threads {count}" for count in sorted(threads)]
    return " ".join(words)


def draw(rows: list[dict]):
    """Both curves, logarithmic; what was not measured is dashed."""
    layers, from_run, dense = (
        sorted((row["n"], row["seconds"]) for row in rows if row["name"] == name)
        for name in ("layer", "run", "LU")
    )
    with figures.style():
        figure, axes = figures.new_figure(size=(figures.PAGE, 4))
        blue, red = figures.PALETTE[0], figures.PALETTE[3]
        if layers:
            axes.loglog(*zip(*layers, strict=True), "o-", color=blue, label="a layer to 1e-10")
        if from_run:
            axes.loglog(*zip(*from_run, strict=True), "s", color=blue, label="layers of a run")
        if dense:
            axes.loglog(*zip(*dense, strict=True), "o-", color=red, label="LU, float64, measured")
            n, seconds = dense[-1]
            end = max(n, *(size for size, _ in layers + from_run + dense))
            beyond = (n, end), (seconds, seconds * (end / n) ** 3)
            axes.loglog(*beyond, "--", color=red, label="LU drawn on as n³, not measured")
        # Layers of a run have sizes between these, whose labels would overlap.
        sizes = sorted({row["n"] for row in rows if row["name"] != "run"} or {r["n"] for r in rows})
        axes.set_xticks(sizes, [f"{n:,}" for n in sizes])
        axes.minorticks_off()
        axes.set_xlabel("n, equations of a layer")
        axes.set_ylabel("seconds")
        axes.legend()
    return figure


if __name__ == "__main__":
    sys.exit(main())
