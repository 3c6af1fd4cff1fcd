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

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

from bench_rows import in_process, measure_missing, memory_status

WIDTHS = (16, 32, 64, 128)
LARGEST_LU = 9_216  # in seconds and half a GB; 36,864 takes a quarter of an hour and 12 GB
OVERSAMPLING = 1.5


def main() -> int:
    """Measure what is missing, read the run, write table and figure."""
    args = read_arguments()
    if args.row:
        name, size = json.loads(args.row)
        row = {"layer": rebuild_layer, "LU": factorize}[name](size)
        print(json.dumps(row | {"peak_memory": memory_status("VmHWM")}))
        return 0
    from bnrecon.runtime import files
    from bnrecon.runtime.errors import UserError

    path = args.outputs / "cost_curve.json"
    sizes = [("layer", width) for width in args.widths] + [("LU", n) for n in args.lu]
    wanted = [{"name": name, "size": size, "threads": args.threads} for name, size in sizes]
    rows = measure_missing(path, wanted, measure, args.fresh)
    try:
        found = run_rows(args.run) if args.run else []
    except UserError as error:
        print(f"cost_curve: {error}", file=sys.stderr)
        return 2
    if found:
        rows = [row for row in rows if row["name"] != "run"] + found
        files.write_json(path, {"rows": rows})
    rows = [row for row in rows if row.get("threads", args.threads) == args.threads]
    if not rows:
        print("cost_curve: no rows; give --widths, --lu or --run", file=sys.stderr)
        return 2
    print(write_report(sorted(rows, key=lambda row: (row["name"], row["n"])), args.outputs))
    return 0


def read_arguments() -> argparse.Namespace:
    """The command line; ``--row`` is for the processes that this script starts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--widths", nargs="*", type=int, default=WIDTHS)
    parser.add_argument("--lu", nargs="*", type=int, default=(576, 2_304, LARGEST_LU), metavar="N")
    parser.add_argument("--run", type=Path, help="folder of a run with features=sign")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--outputs", type=Path, default=Path("outputs/solvers/cost_curve"))
    parser.add_argument("--row", help=argparse.SUPPRESS)
    return parser.parse_args()


def measure(about: dict) -> dict:
    """Measure one row in a process of its own, with the most memory that it ever held."""
    row = in_process(__file__, (about["name"], about["size"]), about["threads"])
    print(f"{about['name']} n = {row['n']:,}: {row['seconds']:.3g} s", file=sys.stderr, flush=True)
    return row


def rebuild_layer(width: int) -> dict:
    """Draw the features of a layer and solve it."""
    import torch

    from bnrecon.construction.residual import layer_system
    from bnrecon.construction.two_layer import TargetLayer
    from bnrecon.features import LayerShape, choose_width, draw
    from bnrecon.solvers import SolverSpec, solve

    shape = LayerShape(width, width, (3, 3))
    features = choose_width("sign", shape, OVERSAMPLING)
    torch.manual_seed(0)
    weight = torch.randn(width, width, 3, 3, dtype=torch.float64)
    target = TargetLayer("layer", weight, torch.zeros(width))
    started, spent = time.perf_counter(), time.process_time()
    pair = draw("sign", shape, features, 0, 0, storage="regenerate")
    system = layer_system(target, pair, torch.device("cpu"), orthogonal=False)
    report = solve(system, SolverSpec("matrix_free")).report
    return {
        "n": shape.equations,
        "c1": features,
        "seconds": time.perf_counter() - started,
        "processor_seconds": time.process_time() - spent,
        "iterations": report.iterations,
        "residual": report.relative_residual,
        "products": report.precision,
    }


def factorize(n: int) -> dict:
    """Factorize a random matrix, its memory being touched before."""
    import torch

    torch.manual_seed(0)
    matrix = torch.randn(n, n, dtype=torch.float64)
    started, spent = time.perf_counter(), time.process_time()
    torch.linalg.lu_factor(matrix)
    return {
        "n": n,
        "seconds": time.perf_counter() - started,
        "processor_seconds": time.process_time() - spent,
    }


def run_rows(folder: Path) -> list[dict]:
    """The median of the layers of each size of a run, finished or at work."""
    from bnrecon.reporting.result import RunResult
    from bnrecon.runtime import files
    from bnrecon.runtime.errors import UserError

    result = files.read_if_valid(folder / "result.json", RunResult.read)
    if result is not None:
        layers = [layer for seed in result.seeds for layer in seed.layers]
        found = [
            (each.equations, each.width, each.seconds, each.iterations, each.residual)
            for each in layers
        ]
    else:
        require_oversampling(folder)
        paths = sorted(folder.glob("seed-*/layer-*.safetensors"))
        read = [files.read_if_valid(path, solved_layer) for path in paths]
        found = [layer for layer in read if layer is not None]  # others ended, or are damaged
    if not found:
        raise UserError(f"--run {folder}: holds no result and no solved layer")
    rows = []
    for size in sorted({(n, width) for n, width, *_ in found}):
        same = [values for n, width, *values in found if (n, width) == size]
        seconds, iterations, residuals = zip(*same, strict=True)
        n, width = size
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
    from bnrecon.runtime.errors import UserError

    config = folder / "config.json"
    if config.exists():
        given = json.loads(config.read_text(encoding="utf-8"))["features"]
        usual = given["oversampling"] in (None, OVERSAMPLING) and given["excess"] is None
        if given["name"] != "sign" or not usual:
            raise UserError(f"--run {folder}: not of 1.5 n features sign; wait for its end")


def solved_layer(path: Path) -> tuple[int, int, float, int, float]:
    """What a run of 1.5 n features tells of a layer until its end.

    Equations, features, seconds, iterations and residual.
    """
    from bnrecon.runtime import files

    tensors, about = files.read_tensors(path)
    report, features = about["report"], len(tensors["scale"])
    return (
        round(features / OVERSAMPLING),
        features,
        report["seconds"],
        report["iterations"],
        report["relative_residual"],
    )


def write_report(rows: list[dict], folder: Path) -> str:
    """Write the table and the figure; the table."""
    import pandas as pd

    from bnrecon.reporting import figures, tables
    from bnrecon.runtime import files
    from bnrecon.runtime.units import format_bytes

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
    from bnrecon.reporting import figures

    layers = sorted((row["n"], row["seconds"]) for row in rows if row["name"] == "layer")
    from_run = sorted((row["n"], row["seconds"]) for row in rows if row["name"] == "run")
    dense = sorted((row["n"], row["seconds"]) for row in rows if row["name"] == "LU")
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
