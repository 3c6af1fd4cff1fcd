#!/usr/bin/env python3
"""Solvers against each other and against alternatives, on one machine, as one table.

    python scripts/bench_solvers.py                      # everything: 45 min on two cores, 12 GB
    python scripts/bench_solvers.py products oversampled # some sections only
    python scripts/bench_solvers.py --quick              # small sizes, outputs/solvers/quick: 1 min
    python scripts/bench_solvers.py --fresh              # forget what was measured before

Sections: products, oversampled, square, frontier, scaling, whole. Each row runs in a process of its
own, which measures its peak memory; the machine should be idle. Resumable: rows that are in the
results are not measured again. Residuals are recomputed from the operator in float64, at the
minimum width as ‖W' - W‖ / ‖W‖ with both scales; the target is standard normal, the features
he_normal from seed 0. Results: outputs/solvers/<device>/{bench.json,bench.md,bench.csv,
frontier.*,scaling.*}.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import math
import subprocess
import time
from pathlib import Path

from bench_rows import in_process, memory_status, read_rows

SECTIONS = ("products", "oversampled", "square", "frontier", "scaling", "whole")


def plan(quick: bool) -> list[dict]:
    """The rows to measure: section, method, width of the layer (c0 = c2, 3x3), oversampling."""
    width, small = (16, 8) if quick else (64, 32)
    rows = [
        {"section": "products", "method": name, "width": width, "oversampling": 1.5}
        for name in ("float64", "float32", "bfloat16")
    ]
    methods = (
        "matrix_free",
        "matrix_free float32",
        "minimum_norm",
        "plain CGLS float64",
        "scipy lsmr float64",
    )
    rows += [
        {"section": "oversampled", "method": name, "width": width, "oversampling": 1.5}
        for name in methods
    ]
    solve = ("torch.linalg.solve float32", "torch.linalg.solve float64")
    for method in ("refined", "lu", *solve, "lu_lbfgs"):
        rows.append({"section": "square", "method": method, "width": small, "oversampling": 1.0})
    for method in ("refined", *solve, "lu_lbfgs"):
        rows.append({"section": "square", "method": method, "width": width, "oversampling": 1.0})
    for method in ("refined", "lu_lbfgs"):
        rows.append(
            {"section": "square", "method": method, "width": width, "oversampling": "minimum"}
        )
    for oversampling in (2.0, 1.5, 1.2, 1.1, 1.05, 1.03, 1.02, 1.01, 1.007):
        rows.append(
            {
                "section": "frontier",
                "method": "matrix_free",
                "width": width,
                "oversampling": oversampling,
            }
        )
    for side in (8, 12, 16) if quick else (16, 32, 64, 96, 128):
        rows.append(
            {"section": "scaling", "method": "matrix_free", "width": side, "oversampling": 1.5}
        )
    for oversampling in (1.5, 1.035):
        rows.append(
            {"section": "whole", "method": "auto", "width": width, "oversampling": oversampling}
        )
    return rows


def key(row: dict) -> tuple:
    """What identifies a row."""
    return row["section"], row["method"], row["width"], row["oversampling"]


# Below: one row, in a process of its own.


def peak_reset() -> int:
    """Start counting peak memory anew; return what is held now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_status("VmRSS")


def measure(row: dict) -> dict:
    """Measure one row and return it filled in."""
    import torch

    from bnrecon.runtime import hardware

    device = hardware.resolve_device(row["device"])
    row |= {"device": hardware.describe_device(device), "torch": torch.__version__}
    if row["section"] == "whole":
        return row | whole(row, device)
    system = measured_system(row, device)
    row |= {"n": system.operator.shape[0], "c1": system.operator.shape[1]}
    if row["section"] == "products":
        return row | products(system, row["method"])
    if note := shortage(row, device):
        return row | {"note": note}
    x, found = timed_solve(row, system, device)
    row["residual"] = residual(row, system, x)
    if row["section"] == "oversampled" and found.get("arithmetic") in ("float32", "bfloat16"):
        # Right after: machines are not equally fast all the time.
        row["bare"] = products(system, found["arithmetic"])["seconds"]
    return row | found


def measured_system(row: dict, device):
    """The system of a row's layer: a standard normal target, he_normal features from seed 0."""
    import torch

    from bnrecon.construction.residual import layer_system
    from bnrecon.construction.two_layer import TargetLayer
    from bnrecon.features.drawing import draw
    from bnrecon.features.shapes import LayerShape

    shape = LayerShape(row["width"], row["width"], (3, 3))
    weight = torch.randn(
        shape.outputs,
        shape.inputs,
        *shape.kernel,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(0),
    )
    if row["oversampling"] == "minimum":
        c1 = shape.minimum_width
    else:
        c1 = math.ceil(round(row["oversampling"] * shape.equations, 6))
    target = TargetLayer("layer", weight, torch.zeros(shape.outputs))
    features = draw("he_normal", shape, c1, 0, 0)
    return layer_system(target, features, device, orthogonal=False)


def shortage(row: dict, device) -> str | None:
    """Why a dense solver cannot run here, if it cannot."""
    from bnrecon.runtime import hardware
    from bnrecon.runtime.units import format_bytes

    entry = {"torch.linalg.solve float32": 8, "torch.linalg.solve float64": 16}
    need = entry.get(row["method"], 0) * row["n"] * row["c1"]
    free = hardware.available_memory(device)
    if need <= 0.95 * free:
        return None
    needed, there = format_bytes(need), format_bytes(free)
    return f"not run: {needed} needed, {there} free"


def timed_solve(row: dict, system, device) -> tuple:
    """Solve; put seconds and peak memory into the row, return x and what the solver tells."""
    import torch

    on_gpu = device.type == "cuda"
    if on_gpu:
        for name in ("lu", "matrix_free"):  # loads the libraries, which takes seconds once
            registered(small_system(device), name)
    before = torch.cuda.memory_allocated() if on_gpu else peak_reset()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    x, found = SOLVE.get(row["method"], registered)(system, row["method"])
    if on_gpu:
        torch.cuda.synchronize()
    row["seconds"] = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated() if on_gpu else memory_status("VmHWM")
    row["memory"] = peak - before
    return x, found


def residual(row: dict, system, x) -> float:
    """The relative residual; at the minimum width ‖W' - W‖ / ‖W‖ with both scales."""
    from bnrecon.solvers.solving import relative_residual

    if row["oversampling"] != "minimum":
        return relative_residual(system, x)
    scales, wanted = system.scales(x), system.weight.cpu()
    table = system.matrix.matvec(scales.inner).reshape(len(wanted), -1)
    reached = (table * scales.outer[:, None]).cpu()
    return float((reached - wanted).norm() / wanted.norm())


def small_system(device):
    """A system to warm up with."""
    import torch

    from bnrecon.construction.two_layer import linear_system
    from bnrecon.operators.khatri_rao import KhatriRao

    factors = (torch.randn(72, k, dtype=torch.float64, device=device) for k in (12, 6))
    return linear_system(
        KhatriRao(*factors), torch.randn(4, 18, dtype=torch.float64, device=device)
    )


def products(system, name: str) -> dict:
    """The bare pair of matrix products of one iteration, each in its fastest memory layout."""
    import torch

    dtype = getattr(torch, name)
    B, A = system.operator.second.to(dtype).contiguous(), system.operator.first.to(dtype)
    BT, Y = B.T.contiguous(), torch.randn(len(B), A.shape[1], device=A.device).to(dtype)
    layouts = {"M x": (lambda: B @ A, lambda: BT.T @ A), "M^T y": (lambda: BT @ Y, lambda: B.T @ Y)}
    best = {}
    for product, ways in layouts.items():
        best[product] = math.inf
        for way in ways:
            for _ in range(20):
                started = time.perf_counter()
                result = way()
                float(result[0, 0])
                best[product] = min(best[product], time.perf_counter() - started)
    return {
        "seconds": sum(best.values()),
        "note": ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in best.items()),
    }


def registered(system, name: str):
    """A solver of the project, its LU timed apart."""
    from unittest import mock

    import torch

    from bnrecon.runtime.precision import FLOAT32, FLOAT64
    from bnrecon.solvers import SolverSpec, dense, iterative, solve

    name, _, precision = name.partition(" ")
    factorize, apart = dense.factorize, {}

    def timed(matrix):
        started = time.perf_counter()
        factors = factorize(matrix)
        if matrix.is_cuda:
            torch.cuda.synchronize()
        apart["LU seconds"] = time.perf_counter() - started
        if matrix.dtype == torch.float32:
            alone = torch.linalg.lu_solve(*factors, system.rhs[:, None].float())[:, 0].double()
            apart["LU residual"] = float(
                (system.rhs - system.operator.matvec(alone)).norm() / system.rhs.norm()
            )
        return factors

    schedule = iterative.precision_schedule
    if precision:
        schedule = lambda _device: [FLOAT32, FLOAT64]  # noqa: E731 (a stand-in for a function)
    with (
        mock.patch.object(dense, "factorize", timed),
        mock.patch.object(iterative, "precision_schedule", schedule),
    ):
        found = solve(system, SolverSpec(name))
    report = found.report
    note = report.precision
    if apart:
        note += f"; the LU alone {apart['LU seconds']:.1f} s"
        note += f", residual {apart['LU residual']:.1e}" if "LU residual" in apart else ""
    return found.scale, {
        "iterations": report.iterations,
        "forecast": report.memory,
        "arithmetic": report.precision,
        "note": note,
        **apart,
    }


def library_solve(system, name: str):
    """torch.linalg.solve on M, formed."""
    import torch

    from bnrecon.runtime.precision import FLOAT32, FLOAT64

    operator = system.operator.to(FLOAT32 if name.endswith("32") else FLOAT64)
    return torch.linalg.solve(operator.dense(), system.rhs.to(operator.dtype)).double(), {}


def plain_cgls(system, _name: str):
    """CGLS in float64, nothing else."""
    from bnrecon.solvers.krylov import cgls

    size = system.rhs.norm()
    x, steps = cgls(system.operator, system.rhs / size, 0.5e-10, 10_000)
    return size * x, {"iterations": steps}


def scipy_lsmr(system, _name: str):
    """scipy.sparse.linalg.lsmr on the operator in float64, which runs on the CPU."""
    import torch
    from scipy.sparse.linalg import LinearOperator, lsmr

    operator, device = system.operator, system.rhs.device

    def through(product):
        return lambda v: product(torch.from_numpy(v.ravel().copy()).to(device)).cpu().numpy()

    wrapped = LinearOperator(
        operator.shape, through(operator.matvec), through(operator.rmatvec), dtype="float64"
    )
    found = lsmr(
        wrapped, system.rhs.cpu().numpy(), atol=1e-15, btol=5e-11, conlim=0, maxiter=10_000
    )
    return torch.from_numpy(found[0]).to(device), {"iterations": int(found[2])}


SOLVE = {
    "torch.linalg.solve float32": library_solve,
    "torch.linalg.solve float64": library_solve,
    "plain CGLS float64": plain_cgls,
    "scipy lsmr float64": scipy_lsmr,
}


def whole(row: dict, device) -> dict:
    """A whole VGG18 with its initial weights: the time does not depend on their values."""
    import torch

    import bnrecon
    from bnrecon.solvers.iterative import expected_iterations
    from bnrecon.targets.register import build

    torch.manual_seed(0)
    model = (
        build("vgg", (3, 32, 32), 10, width=row["width"], groups=[2, 3, 4, 4, 4], activation="relu")
        .to(device)
        .eval()
    )
    started = time.perf_counter()
    with steps_timed() as steps:
        rebuilt = bnrecon.reconstruct(model, "he_normal", oversampling=row["oversampling"])
    seconds = time.perf_counter() - started
    n = max(layer.equations for layer in rebuilt.layers)
    largest = sum(layer.equations == n for layer in rebuilt.layers)
    # Right after: machines are not equally fast all the time.
    pair = products(measured_system(row, device), "bfloat16")["seconds"]
    iterations = expected_iterations(row["oversampling"], 1e-10)
    solving = sum(layer.seconds for layer in rebuilt.layers)
    solvers = sorted({f"{layer.solver} ({layer.precision})" for layer in rebuilt.layers})
    drawing, systems, building = steps["draw_groups"], steps["solve_layer"], steps["build_layer"]
    return {
        "n": n,
        "c1": max(layer.width for layer in rebuilt.layers),
        "seconds": seconds,
        "residual": max(layer.relative_error for layer in rebuilt.layers),
        "iterations": sum(layer.iterations for layer in rebuilt.layers),
        "note": f"{len(rebuilt.layers)} layers, {solving:.1f} s of them solving, {drawing:.1f} s "
        f"drawing features, {systems - solving:.1f} s setting up systems, {building:.1f} s "
        f"checking and assembling, {seconds - drawing - systems - building:.1f} s the rest; "
        f"{seconds / (largest * iterations * pair):.2f} times the bare bfloat16 products of "
        f"{iterations:.0f} iterations in each of the {largest} layers of this n "
        f"({1e3 * pair:.1f} ms a pair); largest layer error; {', '.join(solvers)}",
    }


@contextlib.contextmanager
def steps_timed():
    """Seconds that a reconstruction spends drawing, solving and building layers, by name."""
    from unittest import mock

    from bnrecon.reconstruction import library_call
    from bnrecon.reconstruction.plan import PlannedLayer

    spent = collections.Counter()

    def timed(function):
        def call(*arguments, **options):
            started = time.perf_counter()
            try:
                return function(*arguments, **options)
            finally:
                spent[function.__name__] += time.perf_counter() - started

        return call

    with contextlib.ExitStack() as stack:
        for place, name in (
            (PlannedLayer, "draw_groups"),
            (library_call, "solve_layer"),
            (library_call, "build_layer"),
        ):
            step = timed(getattr(place, name))
            stack.enter_context(mock.patch.object(place, name, step))
        yield spent


def main() -> None:
    """Measure what is missing, then write the table."""
    args = read_arguments()
    if args.row:
        print(json.dumps(measure(json.loads(args.row))))
        return
    import torch
    from bench_solvers_report import report

    on_gpu = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    folder = Path(args.outputs) / ("quick" if args.quick else "") / ("cuda" if on_gpu else "cpu")
    rows = measure_missing(args, folder / "bench.json")
    command = " ".join(["python scripts/bench_solvers.py", *(["--quick"] if args.quick else [])])
    print(report(rows, folder, command))


def read_arguments() -> argparse.Namespace:
    """The command line; ``--row`` is for the processes that this script starts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--outputs", default="outputs/solvers")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(
            f"no such section: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}"
        )
    return args


def measure_missing(args: argparse.Namespace, path: Path) -> list[dict]:
    """Measure the rows that ``path`` lacks, each stored when it is there; return all in order."""
    from bnrecon.runtime import files

    known = [] if args.fresh else read_rows(path)
    done = {key(row): row for row in known}
    order = plan(args.quick)
    for row in order:
        if key(row) in done or (args.sections and row["section"] not in args.sections):
            continue
        if measured := measure_apart(row | {"device": args.device}):
            done[key(row)] = measured
            files.write_json(path, {"rows": [done[key(r)] for r in order if key(r) in done]})
    return [done[key(row)] for row in order if key(row) in done]


def measure_apart(row: dict) -> dict | None:
    """Measure a row in a process of its own; ``None`` where that fails."""
    print(
        f"{row['section']:<12} {row['method']:<28} width {row['width']:<4} "
        f"c1/n {row['oversampling']}",
        end="",
        flush=True,
    )
    try:
        measured = in_process(__file__, row)
    except subprocess.CalledProcessError as error:
        print(f"   failed with exit code {error.returncode}", flush=True)
        return None
    print(
        f"   {measured.get('seconds', math.nan):.3g} s, "
        f"residual {measured.get('residual', math.nan):.1e}, {measured.get('note', '')}",
        flush=True,
    )
    return measured


if __name__ == "__main__":
    main()
