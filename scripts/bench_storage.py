#!/usr/bin/env python3
"""Features in memory, regenerated and on disk: time of the products, time and memory of a solve.

    python scripts/bench_storage.py                    # all tables: an hour on one core, 4 GB
    python scripts/bench_storage.py products --features sign --widths 64
    python scripts/bench_storage.py solves --features he_normal --widths 64 128

3x3 layers, c0 = c2 = width, with 1.5 n features, on one thread. Products: medians of the pair M x
and M^T y, alternating between features in memory and elsewhere; signs are regenerated from stored
bits, and from bits that every product draws. For layers too large to be stored next to their
regenerated form, only a slice of the features is measured. Solves: from a random target to 1e-10,
each in its own process. Its memory is the largest allocation in samples taken every 10 ms, beyond
what it held before, without memory-mapped files. Results: products.{md,json} and solves.{md,json}
in --outputs. Resumable: existing rows are not measured again.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import bench_rows
import command_line
import torch
from bench_rows import measure_missing, memory_status, random_layer, timed, timed_solve

from bnrecon.features import LayerShape, choose_width, draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.operators import integers, signs
from bnrecon.runtime import precision as precisions
from bnrecon.solvers import iterative

PRECISIONS = ("int8", "bfloat16", "float32", "float64")
LARGEST_SLICE = 65_536  # largest number of features in a measured product
ROUNDS = 9
DRAWN = "regenerate, bits drawn in each product"


def storages_of(features: str) -> tuple[str, ...]:
    """The storages to compare: signs on disk would only take more space."""
    return "memory", "regenerate", DRAWN if features == "sign" else "disk"


def time_products(row: dict) -> dict:
    """Medians of one pair of products, for each storage in turn."""
    name, width = row["features"], row["width"]
    shape = LayerShape(width, width, (3, 3))
    features = choose_width(name, shape, 1.5)
    part = features if width < 256 else LARGEST_SLICE
    precision = getattr(precisions, row["precision"].upper())
    operators = {
        each: operator_of(name, shape, part, each, precision) for each in storages_of(name)
    }
    x, y = (torch.randn(size, dtype=precision.vectors) for size in (part, shape.equations))
    times = collections.defaultdict(list)
    for storage, M in ROUNDS * tuple(operators.items()):
        _, seconds = timed(lambda M=M: (M.matvec(x), M.rmatvec(y)))
        times[f"{storage} cpu"].append(seconds["processor_seconds"])
        times[f"{storage} wall"].append(seconds["seconds"])
    medians = {key: statistics.median(each) for key, each in times.items()}
    return {"n": shape.equations, "c1": features, "measured": part} | medians


def operator_of(name: str, shape: LayerShape, part: int, storage: str, precision):
    """M in a precision, with features stored in it or made in each product."""
    with mock.patch.object(signs, "HELD_BYTES", 0 if storage == DRAWN else signs.HELD_BYTES):
        pair = draw(name, shape, part, 0, 0, storage=storage.partition(",")[0])
        operator = feature_operator(pair, torch.float64, torch.device("cpu"))
        if precision is precisions.INT8:
            with mock.patch.object(integers, "EXPANDED_BYTES", 0):
                return integers.IntegerProducts(operator)
        return operator if precision is precisions.FLOAT64 else operator.to(precision)


def time_solve(row: dict) -> dict:
    """Solve one layer; return seconds, iterations, residual and peak memory."""
    if row.get("precision") == "bfloat16":
        iterative.has_fast_int8 = lambda _: False
    before, peak = memory_status("RssAnon"), [0]

    def watch() -> None:
        while True:
            peak[0] = max(peak[0], memory_status("RssAnon"))
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    _, solved = timed_solve(random_layer(row["features"], row["width"], row["storage"]))
    spent = {"wall": solved.pop("seconds"), "cpu": solved.pop("processor_seconds")}
    return solved | spent | {"memory": peak[0] - before}


SECTIONS = {"products": time_products, "solves": time_solve}


def kinds_of(section: str, features: str, precisions: list[str]) -> list[dict]:
    """The requested rows of a section, for features of one width."""
    if section == "products":
        return [{"precision": each} for each in precisions]
    if features == "sign":
        return [{"storage": "regenerate", "precision": kind} for kind in ("int8", "bfloat16")]
    return [{"storage": each} for each in storages_of(features)]


def lines_of(row: dict) -> Iterator[dict]:
    """A row of products as one line per storage."""
    part = "" if row["measured"] == row["c1"] else f" ({row['measured']:,} measured)"
    for storage in storages_of(row["features"]):
        cpu, wall = row[f"{storage} cpu"], row[f"{storage} wall"]
        ratios = {"ratio": cpu / row["memory cpu"], "wall_ratio": wall / row["memory wall"]}
        yield row | ratios | {"slice": part, "storage": storage, "milliseconds": 1e3 * cpu}


def main() -> None:
    """Measure the requested rows, and write a table of all measurements."""
    choices = {"sections": SECTIONS, "features": DISTRIBUTIONS, "precisions": PRECISIONS}
    options = {"features": ["sign", "he_normal"], "widths": [64, 128]}
    options |= {"precisions": ["bfloat16", "float64"], "outputs": Path("outputs/solvers/storage")}
    args = command_line.parser(__doc__, "sections*", choices=choices, **options).parse_args()
    for section in args.sections or SECTIONS:
        requested = [
            {"section": section, "features": name, "width": width} | kind
            for name, width in itertools.product(args.features, args.widths)
            for kind in kinds_of(section, name, args.precisions)
        ]
        measure = functools.partial(bench_rows.apart, SECTIONS[section], threads=1)
        rows = measure_missing(args.outputs / f"{section}.json", requested, measure)
        rows.sort(key=lambda row: (row["features"], row["width"], row.get("precision", "")))
        lines = rows if section == "solves" else [line for row in rows for line in lines_of(row)]
        words = {"section": section, "processors": os.cpu_count()}
        bench_rows.write_table(args.outputs / f"{section}.md", lines, **words)


if __name__ == "__main__":
    main()
