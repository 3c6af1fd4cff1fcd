"""One row of `bench_solvers.py`, measured in a process of its own, which prints it as JSON.

python scripts/bench_solvers_row.py --row '{"section": "square", "method": "lu", "width": 8,
                                            "oversampling": 1.0, "device": "cpu"}'
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import torch
from bench_rows import memory_status
from bench_solvers_methods import METHODS, products, registered

import bnrecon
from bnrecon.construction.residual import layer_system
from bnrecon.construction.two_layer import TargetLayer, linear_system
from bnrecon.features.drawing import draw
from bnrecon.features.shapes import LayerShape
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.reconstruction import library_call
from bnrecon.reconstruction.plan import PlannedLayer
from bnrecon.runtime import hardware
from bnrecon.runtime.units import format_bytes
from bnrecon.solvers.iterative import expected_iterations
from bnrecon.solvers.solving import relative_residual
from bnrecon.targets.register import build

PRODUCTS = ("int8", "bfloat16", "float32")  # of which the bare products are timed


def measure(row: dict) -> dict:
    """Measure one row and return it filled in."""
    device = hardware.resolve_device(row["device"])
    row |= {"device": hardware.describe_device(device), "torch": torch.__version__}
    if row["section"] == "whole":
        return row | whole(row, device)
    if row["section"] == "contention":
        return row | contention(row, device)
    system = measured_system(row, device)
    row |= {"n": system.operator.shape[0], "c1": system.operator.shape[1]}
    if row["section"] == "products":
        return row | products(system, row["method"])
    if note := shortage(row, device):
        return row | {"note": note}
    x, found = timed_solve(row, system, device)
    row["residual"] = residual(row, system, x)
    if row["section"] == "oversampled" and found.get("arithmetic") in PRODUCTS:
        # Right after: machines are not equally fast all the time.
        row["bare"] = products(system, found["arithmetic"])["seconds"]
    return row | found


def measured_system(row: dict, device):
    """The system of a row's layer: a standard normal target, features from seed 0."""
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
    features = draw(features_of(row), shape, c1, 0, 0)
    return layer_system(target, features, device, orthogonal=False)


def features_of(row: dict) -> str:
    """The distribution of a row's features, the last word of its method if it is not he_normal."""
    return "sign" if row["method"].endswith(" sign") else "he_normal"


def shortage(row: dict, device) -> str | None:
    """Why a dense solver cannot run here, if it cannot."""
    entry = {"torch.linalg.solve float32": 8, "torch.linalg.solve float64": 16}
    need = entry.get(row["method"], 0) * row["n"] * row["c1"]
    free = hardware.available_memory(device)
    if need <= 0.95 * free:
        return None
    needed, there = format_bytes(need), format_bytes(free)
    return f"not run: {needed} needed, {there} free"


def timed_solve(row: dict, system, device) -> tuple:
    """Solve; put seconds and peak memory into the row, return x and what the solver tells."""
    on_gpu = device.type == "cuda"
    if on_gpu:
        for name in ("lu", "matrix_free"):  # loads the libraries, which takes seconds once
            registered(small_system(device), name)
    before = torch.cuda.memory_allocated() if on_gpu else peak_reset()
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    started = time.perf_counter()
    x, found = METHODS.get(row["method"], registered)(system, row["method"])
    if on_gpu:
        torch.cuda.synchronize()
    row["seconds"] = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated() if on_gpu else memory_status("VmHWM")
    row["memory"] = peak - before
    return x, found


def peak_reset() -> int:
    """Start counting peak memory anew; return what is held now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return memory_status("VmRSS")


def residual(row: dict, system, x) -> float:
    """The relative residual; at the minimum width ‖W' - W‖ / ‖W‖ with both scales."""
    if row["oversampling"] != "minimum":
        return relative_residual(system, x)
    scales, wanted = system.scales(x), system.weight.cpu()
    table = system.matrix.matvec(scales.inner).reshape(len(wanted), -1)
    reached = (table * scales.outer[:, None]).cpu()
    return float((reached - wanted).norm() / wanted.norm())


def small_system(device):
    """A system to warm up with."""
    factors = (torch.randn(72, k, dtype=torch.float64, device=device) for k in (12, 6))
    return linear_system(
        KhatriRao(*factors), torch.randn(4, 18, dtype=torch.float64, device=device)
    )


def untrained(width: int, device) -> torch.nn.Module:
    """A VGG18 of this width."""
    torch.manual_seed(0)
    options = {"width": width, "groups": [2, 3, 4, 4, 4], "activation": "relu"}
    return build("vgg", (3, 32, 32), 10, **options).to(device).eval()


def contention(row: dict, device) -> dict:
    """A small network as a whole, three times, alone or while another process uses every core.

    Products so small are slow where their threads wait for one that has to wait for a core.
    """
    model, seconds = untrained(row["width"], device), []
    others = contextlib.nullcontext() if row["method"] == "alone" else busy_process()
    with others:
        for _ in range(3):
            started = time.perf_counter()
            rebuilt = bnrecon.reconstruct(model, "he_normal", oversampling=row["oversampling"])
            seconds.append(time.perf_counter() - started)
    return {
        "n": max(layer.equations for layer in rebuilt.layers),
        "c1": max(layer.width for layer in rebuilt.layers),
        "seconds": statistics.median(seconds),
        "iterations": sum(layer.iterations for layer in rebuilt.layers),
        "residual": max(layer.relative_error for layer in rebuilt.layers),
        "note": f"{len(rebuilt.layers)} layers; median of {', '.join(f'{s:.2g}' for s in seconds)}",
    }


@contextlib.contextmanager
def busy_process():
    """Another process multiplies matrices on all cores meanwhile."""
    code = "import torch; a = torch.randn(2048, 2048); print(1, flush=True)\nwhile True: a @ a"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        try:
            process.stdout.readline()
            yield
        finally:
            process.kill()


def whole(row: dict, device) -> dict:
    """A whole VGG18 with its initial weights: the time does not depend on their values."""
    model = untrained(row["width"], device)
    started = time.perf_counter()
    with steps_timed() as steps:
        rebuilt = bnrecon.reconstruct(model, features_of(row), oversampling=row["oversampling"])
    seconds = time.perf_counter() - started
    n = max(layer.equations for layer in rebuilt.layers)
    largest = sum(layer.equations == n for layer in rebuilt.layers)
    # Right after: machines are not equally fast all the time.
    pair = products(measured_system(row | {"method": "auto"}, device), "bfloat16")["seconds"]
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


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[-1]))))
