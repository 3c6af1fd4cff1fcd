#!/usr/bin/env python3
"""Compare the solvers with each other and with alternatives, on one machine, in one table.

    python scripts/bench_solvers.py                      # everything: 45 min on two cores, 12 GB
    python scripts/bench_solvers.py products oversampled # some sections only

Sections: products, oversampled, square, together, frontier, whole, contention. Each row runs in its
own process, which measures its peak memory; the machine should be idle. Resumable: rows in the
results, also shipped ones, are not measured again (--outputs FOLDER starts anew). Residuals are
recomputed from the operator in float64, at the minimum width as ‖W' - W‖ / ‖W‖ with both scales;
the target is standard normal, the features are he_normal from seed 0, or sign if the method says
so. Results: outputs/solvers/<device>/{bench.json,bench.md,frontier.*}.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import bench_rows
import command_line
import torch
from bench_rows import TABLES, apart, measure_missing, memory_status, random_layer, timed
from bench_training import vgg18
from matplotlib.figure import Figure
from scipy.sparse.linalg import LinearOperator, lsmr

import bnrecon
from bnrecon.construction.two_layer import relative_error
from bnrecon.operators.system import System
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.reconstruction.solving import layer_problem
from bnrecon.reporting import figures
from bnrecon.runtime import hardware
from bnrecon.runtime.precision import FLOAT32, FLOAT64
from bnrecon.runtime.units import format_bytes
from bnrecon.solvers import SolverSpec, iterative, solve
from bnrecon.solvers.base import Solution
from bnrecon.solvers.krylov import cgls
from bnrecon.solvers.solving import relative_residual

PRODUCTS = ("int8", "bfloat16", "float32")  # precisions of the bare products that are timed
DENSE = {"torch.linalg.solve float32": 8, "torch.linalg.solve float64": 16}  # bytes per entry
# The method with which a section's others are compared; it is the first of its size.
OURS = {"oversampled": "matrix_free", "square": "refined", "contention": "alone"}
OURS["together"] = "one factorization"
TARGETS = 8  # as many as Tables 1 and 2 of Burkholz 2024 have
PLAN = [
    dict(zip(("section", "method", "width", "oversampling"), key, strict=True))
    for section, *grid in TABLES["bench"]["plan"]
    for key in itertools.product([section], *grid)
]


def main() -> int:
    """Measure what is missing, then write the table."""
    choices = {"sections": dict.fromkeys(row["section"] for row in PLAN)}
    options = {"device": "auto", "outputs": Path("outputs/solvers")}
    args = command_line.parser(__doc__, "sections*", choices=choices, **options).parse_args()
    device = hardware.resolve_device(args.device)
    folder = args.outputs / device.type
    keys = [row for row in PLAN if not args.sections or row["section"] in args.sections]
    rows = measure_missing(folder / "bench.json", keys, lambda row: apart(measure, row, device))
    report([row for key in PLAN for row in rows if key.items() <= row.items()], folder)
    return int(any(not any(key.items() <= row.items() for row in rows) for key in keys))


def random_system(
    features: str, width: int, oversampling: float | str, device: torch.device
) -> System:
    """The system of a random layer."""
    layer = random_layer(features, width, oversampling=oversampling, solver="auto", device=device)
    return layer_problem(layer, layer.folded.target, layer.draw())[0]


def measure(row: dict, device: torch.device) -> dict:
    """Measure one row and return it completed."""
    row |= {"device": hardware.describe_device(device), "torch": torch.__version__}
    features = "sign" if row["method"].endswith(" sign") else "he_normal"
    if row["section"] in ("whole", "contention"):
        return network(row, features, device)
    if row["section"] == "together":
        return row | together(row, device)
    system = random_system(features, row["width"], row["oversampling"], device)
    row |= {"n": system.operator.shape[0], "c1": system.operator.shape[1]}
    if row["section"] == "products":
        return row | products(system, row["method"])
    needed = DENSE.get(row["method"], 0) * row["n"] * row["c1"]
    if needed > 0.95 * (free := hardware.available_memory(device)):
        return row | {"note": f"not run: {format_bytes(needed)} needed, {format_bytes(free)} free"}
    row |= solve_row(row, system)
    arithmetic = row.get("arithmetic", "").removesuffix(" and int8")
    if row["section"] == "oversampled" and arithmetic in PRODUCTS:
        # Right after: machines are not equally fast all the time.
        row["bare"] = products(system, arithmetic)["seconds"]
    return row


def solve_row(row: dict, system: System) -> dict:
    """Solve; return seconds, peak memory and residual, with the solver's report."""
    if on_gpu := system.rhs.is_cuda:
        small = random_system("he_normal", 4, 1.0, system.rhs.device)
        for name in ("lu", "matrix_free"):  # loads the libraries, which takes seconds once
            registered(small, name)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # resets peak memory
        before = memory_status("VmRSS")
    solver = METHODS.get(row["method"].rpartition(" ")[0], registered)
    (x, told), times = timed(solver, system, row["method"])
    peak = torch.cuda.max_memory_allocated() if on_gpu else memory_status("VmHWM")
    residual = relative_residual(system, x)
    if row["oversampling"] == "minimum":  # ‖W' - W‖ / ‖W‖ with both scales
        scales = system.scales(x)
        rebuilt = system.matrix.matvec(scales.inner).reshape(system.weight.shape)
        residual = relative_error(rebuilt * scales.outer[:, None], system.weight)
    return {"seconds": times["seconds"], "memory": peak - before, "residual": residual} | told


def together(row: dict, device: torch.device) -> dict:
    """Layers with the same features and other weights, by one factorization or by one each."""

    def draw(width: int) -> list[PlannedLayer]:
        options = {"oversampling": row["oversampling"], "solver": "auto", "device": device}
        return [random_layer("he_normal", width, target=one, **options) for one in range(TARGETS)]

    def solve_each(layers: Sequence[PlannedLayer]) -> list[Solution]:
        return [bnrecon.solve_layer(layer) for layer in layers]

    solve_all = bnrecon.solve_layers if row["method"] == OURS["together"] else solve_each
    solve_all(draw(4))  # loads the libraries
    layers = draw(row["width"])
    solutions, times = timed(solve_all, layers)
    return {
        "n": layers[0].rows,
        "c1": layers[0].width,
        "seconds": times["seconds"],
        "residual": max(solution.report.relative_residual for solution in solutions),
        "note": f"{TARGETS} targets; {solutions[0].report.solver}",
    }


def network(row: dict, features: str, device: torch.device) -> dict:
    """A whole VGG18, with its initial weights: the time does not depend on their values.

    A small one is rebuilt three times, alone or while another process uses every core: such small
    products are slow if their threads wait for one that has to wait for a core.
    """
    torch.manual_seed(0)
    model, options = vgg18(row["width"]).to(device).eval(), {"oversampling": row["oversampling"]}
    rebuild = functools.partial(bnrecon.reconstruct, model, features, **options)
    with contextlib.ExitStack() as stack:
        if row["method"] == "beside another process":
            code = "import torch; a = torch.randn(2048, 2048); print(1, flush=True)"
            line = [sys.executable, "-c", f"{code}\nwhile True: a @ a"]
            process = stack.enter_context(subprocess.Popen(line, stdout=subprocess.PIPE))
            stack.callback(process.kill)
            process.stdout.readline()
        runs = [timed(rebuild) for _ in range(3 if row["section"] == "contention" else 1)]
    layers, seconds = runs[-1][0].layers, [times["seconds"] for _, times in runs]
    row |= {
        "n": max(layer.equations for layer in layers),
        "c1": max(layer.width for layer in layers),
        "seconds": statistics.median(seconds),
        "iterations": sum(layer.iterations for layer in layers),
        "residual": max(layer.relative_error for layer in layers),
    }
    note = f"{len(layers)} layers; median of {', '.join(f'{s:.2g}' for s in seconds)}"
    return row | {"note": beside_products(row, layers, device) if len(runs) == 1 else note}


def beside_products(row: dict, layers: Sequence, device: torch.device) -> str:
    """Compare a network's seconds with the bare products of its largest layers."""
    largest = sum(layer.equations == row["n"] for layer in layers)
    # Right after: machines are not equally fast all the time.
    system = random_system("he_normal", row["width"], row["oversampling"], device)
    pair = products(system, "bfloat16")["seconds"]
    iterations = iterative.expected_iterations(row["oversampling"], 1e-10)
    solvers = sorted({f"{layer.solver} ({layer.precision})" for layer in layers})
    return (
        f"{len(layers)} layers, {sum(layer.seconds for layer in layers):.1f} s of them solving; "
        f"{row['seconds'] / (largest * iterations * pair):.2f} times the bare bfloat16 products of "
        f"{iterations:.0f} iterations in each of the {largest} layers of this n "
        f"({1e3 * pair:.1f} ms a pair); largest layer error; {', '.join(solvers)}"
    )


def products(system: System, name: str) -> dict:
    """The bare pair of products of one iteration, each in its fastest layout; int8 uses signs."""
    dtype, (B, A) = getattr(torch, name), (system.operator.second, system.operator.first)
    multiply = torch.matmul
    if name == "int8":
        multiply, B, A = torch._int_mm, B.sign(), A.sign()
    B, A = B.to(dtype).contiguous(), A.to(dtype)
    BT, Y = B.T.contiguous(), torch.randn(len(B), A.shape[1], device=A.device).to(dtype)
    layouts = {
        "M x": (lambda: multiply(B, A), lambda: multiply(BT.T, A)),
        "M^T y": (lambda: multiply(BT, Y), lambda: multiply(B.T, Y)),
    }
    best = {
        product: min(timed(way)[1]["seconds"] for way in 20 * ways)
        for product, ways in layouts.items()
    }
    note = ", ".join(f"{product} {1e3 * seconds:.1f} ms" for product, seconds in best.items())
    return {"seconds": sum(best.values()), "note": note}


def registered(system: System, name: str) -> tuple[torch.Tensor, dict]:
    """Solve with a solver of the project."""
    name, _, precision = name.partition(" ")
    with contextlib.ExitStack() as stack:
        if precision == "float32":
            schedule = {"return_value": [FLOAT32, FLOAT64]}
            stack.enter_context(mock.patch.object(iterative, "precision_schedule", **schedule))
            stack.enter_context(mock.patch.object(iterative, "has_fast_int8", return_value=False))
        solved = solve(system, SolverSpec(name))
    products = solved.report.precision
    told = {"iterations": solved.report.iterations, "arithmetic": products, "note": products}
    return solved.scale, told


def library_solve(system, name: str):
    """torch.linalg.solve on M, formed."""
    operator = system.operator.to(FLOAT32 if name.endswith("32") else FLOAT64)
    return torch.linalg.solve(operator.dense(), system.rhs.to(operator.dtype)).double(), {}


def plain_cgls(system, _name: str):
    """Plain CGLS in float64."""
    size = system.rhs.norm()
    x, steps = cgls(system.operator, system.rhs / size, 0.5e-10, 10_000)
    return size * x, {"iterations": steps}


def scipy_lsmr(system, _name: str):
    """scipy.sparse.linalg.lsmr on the operator in float64, which runs on the CPU."""
    operator, device = system.operator, system.rhs.device

    def through(product):
        return lambda v: product(torch.from_numpy(v.ravel().copy()).to(device)).cpu().numpy()

    wrapped = LinearOperator(
        operator.shape, through(operator.matvec), through(operator.rmatvec), dtype="float64"
    )
    x, _, iterations, *_ = lsmr(
        wrapped, system.rhs.cpu().numpy(), atol=1e-15, btol=5e-11, conlim=0, maxiter=10_000
    )
    return torch.from_numpy(x).to(device), {"iterations": int(iterations)}


METHODS = {  # each returns x and its report; other names are solvers of the project
    "torch.linalg.solve": library_solve,
    "plain CGLS": plain_cgls,
    "scipy lsmr": scipy_lsmr,
}


def report(rows: list[dict], folder: Path) -> None:
    """Write the table and the figure, and print the table."""
    ours, ran = {}, [row for row in rows if "seconds" in row]
    for row in rows:
        row["reached"] = row["c1"] / row["n"]
        size = tuple(row[name] for name in ("section", "width", "oversampling"))
        if row["method"] == OURS.get(row["section"]):
            ours[size] = row["seconds"]
        if size in ours and "seconds" in row:
            row["times"] = row["seconds"] / ours[size]
        if "bare" in row:
            row["bare_times"] = row["seconds"] / (row["iterations"] * row["bare"])
            row["bare_milliseconds"] = 1e3 * row["bare"]
    lines = (bench_rows.cell(row, TABLES["bench"]["sentence"]) for row in rows)
    bench_rows.write_table(folder / "bench.md", rows, comparisons="\n".join(filter(None, lines)))
    frontier = [row for row in ran if row["section"] == "frontier"]
    refined = {row["n"]: row["seconds"] for row in ran if row["method"] == "refined"}
    if frontier and (lu := refined.get(frontier[0]["n"])):
        bench_rows.write_figure(folder / "frontier", draw_frontier(frontier, lu))


def draw_frontier(points: list[dict], lu: float) -> Figure:
    """Seconds against oversampling, with the LU."""
    excess = [row["c1"] / row["n"] - 1 for row in points]
    seconds = [row["seconds"] for row in points]
    slower = [row["oversampling"] for row in points if row["seconds"] >= lu]
    crossing = f"; slower than the LU from {max(slower):g} down" if slower else ""
    with figures.style():
        figure, axes = figures.new_figure(size=(figures.PAGE, 4))
        label = "matrix_free, bf16 inside where that suffices"
        axes.loglog(excess, seconds, "o-", color=figures.PALETTE[0], label=label)
        label = "refined: LU in float32 of the first n features, corrected"
        axes.axhline(lu, color=figures.PALETTE[3], label=label)
        axes.set_xticks(excess, [f"{row['oversampling']:g}" for row in points])
        axes.minorticks_off()
        axes.set_xlabel("oversampling c1/n, spaced by the logarithm of c1/n - 1")
        axes.set_ylabel("seconds to a residual of 1e-10")
        axes.set_title(f"n = {points[0]['n']:,}, {points[0]['device']}{crossing}")
        axes.legend(loc="lower left")
    return figure


if __name__ == "__main__":
    sys.exit(main())
