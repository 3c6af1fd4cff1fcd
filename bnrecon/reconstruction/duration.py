"""Estimate how long solving takes: operations over a measured rate."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import torch

from bnrecon.reconstruction.planned_layer import PlannedLayer, disk_bytes
from bnrecon.runtime.hardware import available_memory, onednn_is_faster
from bnrecon.runtime.precision import precision_schedule
from bnrecon.solvers.factorization import panels_pay
from bnrecon.solvers.iterative import expected_iterations, integers_pay
from bnrecon.solvers.krylov import MOST_ITERATIONS
from bnrecon.solvers.lbfgs import MAX_ITERATIONS

# Of the timed matrices; a GPU takes longer to launch a product of 1,024 than to compute it.
SIDES = {"cpu": 1024, "cuda": 4096}
REGENERATION = 1.2  # times a product with stored features (scripts/bench_storage.py)
# In float64: corrections and checks of the solve, the errors of the layer when built and when
# loaded, its collapsed form.
EXACT_PRODUCTS = 13
EXACT_BESIDE_INTEGERS = 8  # one correction is enough
DRAWN_SECONDS = 12e-9  # to draw and multiply one normal number in float64
DISK_RATE = 1e9  # assumed bytes per second
PASSES = 20  # over exact features: corrections and checks of the solve, errors, digests


def rate(dtype: torch.dtype, device: torch.device) -> float:
    """Measure the operations per second of a matrix product in this precision.

    On a shared CPU, process time gives the rate that it has alone.
    """
    side = SIDES[device.type]
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    multiply = torch._int_mm if dtype == torch.int8 else torch.matmul
    best = math.inf
    for _ in range(3):
        started, spent = time.perf_counter(), time.process_time()
        float(multiply(a, b)[0, 0])  # waits for the GPU
        best = min(best, time.perf_counter() - started)
        if device.type == "cpu":
            best = min(best, (time.process_time() - spent) / torch.get_num_threads())
    return 2 * side**3 / best


def solving_seconds(layers: Sequence[PlannedLayer]) -> list[float]:
    """Seconds to solve, build and verify each layer."""
    if not layers:
        return []
    device = layers[0].device
    kinds = {torch.float32, torch.float64, precision_schedule(device)[0].factors}
    if any(_in_integers(layer) or _gradients_in_integers(layer) for layer in layers):
        kinds.add(torch.int8)
    rates = {kind: rate(kind, device) for kind in kinds}
    return [
        layer.groups * _group_seconds(layer, rates) + storage_seconds(layer) for layer in layers
    ]


def _in_integers(layer: PlannedLayer) -> bool:
    """Whether a layer's iterations multiply in 8-bit integers, judged by its features' name."""
    name = layer.features.name
    signs = name == "sign" or (name == "er_sign" and layer.storage == "memory")
    return signs and _integers_pay(layer, signs)


def _gradients_in_integers(layer: PlannedLayer) -> bool:
    """Whether the products with M^T alone use 8-bit integers, for features in memory."""
    others = layer.storage == "memory" and not _in_integers(layer)
    return others and _integers_pay(layer, signs=False)


def _integers_pay(layer: PlannedLayer, signs: bool) -> bool:
    pays = integers_pay(layer.rows, layer.width, layer.device, signs)
    return pays and layer.width >= layer.shape.equations and layer.choice.solver == "matrix_free"


def _group_seconds(layer: PlannedLayer, rates: Mapping[torch.dtype, float]) -> float:
    """Seconds of a group: ln(1/tol) / (½ ln(c1/n)) times two products, or an LU of (2/3) n³."""
    shape, c1 = layer.shape, layer.width
    n = max(1, layer.rows)  # with a skip connection there may be none
    name, spec = layer.choice.solver, layer.solver
    single = rates[torch.float32]
    integers = _in_integers(layer)
    exact_products = EXACT_BESIDE_INTEGERS if integers else EXACT_PRODUCTS
    exact = exact_products * 2 * n * c1 / (0.9 * rates[torch.float64])
    if name == "closed_form":
        return 16 * n * shape.feature_size / single
    if name in ("matrix_free", "minimum_norm", "lbfgs"):
        limit = spec.max_iterations or (MAX_ITERATIONS if name == "lbfgs" else MOST_ITERATIONS)
        iterations = min(limit, expected_iterations(c1 / n, spec.tolerance))
        if integers:  # regenerated or not: n = 36,864 to 589,824, scripts/bench_storage.py
            return exact + iterations * 4 * n * c1 / (0.7 * rates[torch.int8])
        products = 4 * n * c1 * (REGENERATION if layer.storage == "regenerate" else 1)
        fast = single if name == "lbfgs" else rates[precision_schedule(layer.device)[0].factors]
        if _gradients_in_integers(layer):
            fast = 2 / (1 / fast + 1 / rates[torch.int8])
        return exact + iterations * products / (0.65 * fast)
    if name in ("least_squares", "svd_lbfgs", "svd_lu_lbfgs"):
        return exact + 12 * n * n * c1 / (0.3 * single)
    panels = name == "refined" and panels_pay(n, layer.device) and onednn_is_faster(layer.device)
    share = 0.35 if name == "lu" else 1.4 if panels else 0.7
    return exact + 2 / 3 * n**3 / (share * single)


def storage_seconds(layer: PlannedLayer) -> float:
    """Estimate the additional seconds of a layer whose features are not in memory.

    Files that fit into free memory are read at its speed.
    """
    size = layer.feature_bytes
    if layer.storage == "regenerate" and layer.features.name != "sign":
        return PASSES * (size // 4) * DRAWN_SECONDS / torch.get_num_threads()
    if layer.storage != "disk" or disk_bytes([layer]) <= available_memory(torch.device("cpu")):
        return 0.0
    oversampling = layer.width / layer.shape.equations
    iterations = min(MOST_ITERATIONS, expected_iterations(oversampling, 1e-10))
    rounded = layer.groups * layer.rounded_bytes(layer.choice.solver)
    return (size * PASSES + 2 * iterations * rounded) / DISK_RATE
