"""Features in memory, regenerated and on disk: time of the products, time and memory of a solve.

    python scripts/bench_storage.py                    # all tables: an hour on one core, 4 GB
    python scripts/bench_storage.py products --features sign --widths 64
    python scripts/bench_storage.py solves --features he_normal --widths 64 128
    python scripts/bench_storage.py --features sign --outputs FOLDER   # keeps rows and tables there

Layers of 3x3, c0 = c2 = width, with 1.5 n features. Products: the pair M x and M^T y that an
iteration takes in bf16 or, of signs, in int8, and a correction in float64, with features in memory
and elsewhere in turn on one thread; signs are regenerated from bits that are kept, and from bits
that every product draws, as those beyond 0.5 GB are. Told are the medians of the processor's time
and of the clock's, which differ on a busy machine. Of layers too large to be stored next to their
regenerated form only a run of the features is measured. Solves: from a random target to 1e-10, each
in a process of its own; signs from their bits, in int8 and in bf16. Its memory is the largest that
it had allocated at any of the samples taken every 10 ms, above what it held before features were
drawn; what it maps from a file is not part of that. Widths from 256 on are not solved. Prints both
as Markdown; with --outputs also writes products.{md,json} and solves.{md,json}, with the commands.
Resumable then: each row is kept once it is there, beside those of other calls (--fresh measures
what is asked for again).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from unittest import mock

import command_line
import pandas as pd
import torch
from bench_rows import (
    ROW,
    in_process,
    measure_missing,
    memory_status,
    solve_random,
    square_layer,
)

from bnrecon.features import LayerShape, draw
from bnrecon.features.matrix import feature_operator
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.operators import signs
from bnrecon.operators.integers import IntegerProducts
from bnrecon.reporting import tables
from bnrecon.runtime import files
from bnrecon.runtime import precision as precisions
from bnrecon.runtime.units import format_bytes
from bnrecon.solvers import iterative

SECTIONS = ("products", "solves")
PRECISIONS = ("int8", "bfloat16", "float32", "float64")
LARGEST_SLICE = 65_536  # features of which products are measured
LARGEST_SOLVE = 255  # wider layers take a quarter of an hour and more
ROUNDS = 9
DRAWN = "regenerate, bits drawn in each product"


def storages_of(features: str) -> tuple[str, ...]:
    """Where the features of a solve are: signs on disk would only take more room."""
    return ("memory", "regenerate") if features == "sign" else ("memory", "regenerate", "disk")


def compared(features: str) -> tuple[str, ...]:
    """What products are timed in turn: a storage each, and signs whose bits are not kept."""
    return (*storages_of(features), DRAWN) if features == "sign" else storages_of(features)


def time_products(name: str, width: int, precision: str) -> dict:
    """Medians of one pair of products, for each storage in turn."""
    shape, features = square_layer(width)
    part = features if width < 256 else LARGEST_SLICE
    wanted = getattr(precisions, precision.upper())
    operators = {
        storage: operator_of(name, shape, part, storage, wanted) for storage in compared(name)
    }
    x, y = (torch.randn(size, dtype=wanted.vectors) for size in (part, shape.equations))
    clocks = {"cpu": time.process_time, "wall": time.perf_counter}
    times: dict = {(storage, clock): [] for storage in operators for clock in clocks}
    for _ in range(ROUNDS):
        for storage, operator in operators.items():
            before = {clock: read() for clock, read in clocks.items()}
            operator.matvec(x)
            operator.rmatvec(y)
            for clock, read in clocks.items():
                times[storage, clock].append(read() - before[clock])
    medians = {f"{key} {clock}": statistics.median(each) for (key, clock), each in times.items()}
    return {"n": shape.equations, "c1": features, "measured": part} | medians


def operator_of(name: str, shape: LayerShape, part: int, storage: str, wanted):
    """M in a precision, with features that are stored in it or made in each product."""
    with mock.patch.object(signs, "HELD_BYTES", 0 if storage == DRAWN else signs.HELD_BYTES):
        pair = draw(name, shape, part, 0, 0, storage=storage.partition(",")[0])
        operator = feature_operator(pair, torch.float64, torch.device("cpu"))
        if wanted is precisions.INT8:
            return IntegerProducts(operator, expanded_bytes=0)
        return operator if wanted is precisions.FLOAT64 else operator.to(wanted)


def time_solve(name: str, width: int, storage: str, precision: str | None = None) -> dict:
    """Solve one layer; seconds, iterations, residual and peak memory."""
    if precision not in (None, "int8"):
        iterative.has_fast_int8 = lambda _: False
    before, peak = memory_status("RssAnon"), [0]

    def watch() -> None:
        while True:
            peak[0] = max(peak[0], memory_status("RssAnon"))
            time.sleep(0.01)

    threading.Thread(target=watch, daemon=True).start()
    row = solve_random(name, width, storage)
    spent = {"wall": row.pop("seconds"), "cpu": row.pop("processor_seconds")}
    return row | spent | {"memory": peak[0] - before}


def measure(about: dict) -> dict:
    """Measure one row in a process of its own, on one thread."""
    measured = in_process(__file__, tuple(about.values()), threads=1)
    print(" | ".join(map(str, about.values())), "measured", file=sys.stderr, flush=True)
    return measured


def products_lines(row: dict) -> Iterable[dict]:
    """A row of products in words: a line for each storage."""
    part = "" if row["measured"] == row["c1"] else f" ({row['measured']:,} measured)"
    for storage in compared(row["features"]):
        if f"{storage} cpu" not in row:  # of an earlier version
            continue
        cpu, wall = row[f"{storage} cpu"], row[f"{storage} wall"]
        yield {
            "features": row["features"],
            "width": row["width"],
            "n": f"{row['n']:,}",
            "c1": f"{row['c1']:,}{part}",
            "precision": row["precision"],
            "storage": storage,
            "processor": f"{1e3 * cpu:.0f} ms",
            "ratio": f"{cpu / row['memory cpu']:.2f}",
            "by the clock": f"{wall / row['memory wall']:.2f}",
        }


def solves_lines(row: dict) -> Iterable[dict]:
    """A row of solves in words."""
    yield {
        "features": row["features"],
        "width": row["width"],
        "n": f"{row['n']:,}",
        "storage": row["storage"],
        "processor": f"{row['cpu']:.1f} s",
        "clock": f"{row['wall']:.1f} s",
        "products": row.get("products", ""),
        "iterations": row["iterations"],
        "residual": f"{row['residual']:.1e}",
        "memory": format_bytes(row["memory"]),
    }


def wanted_rows(section: str, args: argparse.Namespace) -> list[dict]:
    """What is asked for of a section."""
    rows = []
    for name, width in itertools.product(args.features, args.widths):
        about = {"section": section, "features": name, "width": width}
        if section == "products":
            rows += [about | {"precision": each} for each in args.precisions]
        elif width <= LARGEST_SOLVE and name == "sign":
            kinds = ("int8", "bfloat16")
            rows += [about | {"storage": "regenerate", "precision": kind} for kind in kinds]
        elif width <= LARGEST_SOLVE:
            rows += [about | {"storage": each} for each in storages_of(name)]
    return rows


def report(section: str, rows: list[dict], outputs: Path | None) -> str:
    """All rows as a table, written with the commands that measure them."""
    lines = {"products": products_lines, "solves": solves_lines}[section]
    rows = sorted(rows, key=lambda r: (r["features"], r["width"], r.get("precision", "")))
    table = tables.markdown(pd.DataFrame([line for row in rows for line in lines(row)]))
    commands = []
    for name in dict.fromkeys(row["features"] for row in rows):
        words = [f"python scripts/bench_storage.py {section} --features {name}"]
        for field in ("width", *(["precision"] if section == "products" else [])):
            of_name = (row for row in rows if row["features"] == name and field in row)
            words += [f"--{field}s", *dict.fromkeys(str(row[field]) for row in of_name)]
        commands.append(f"`{' '.join(words)}`")
    if outputs is not None:
        about = f"One thread of {os.cpu_count()}. Commands: {'; '.join(commands)}."
        files.write_text(outputs / f"{section}.md", f"{table}\n\n{about}\n")
    return table


def main() -> None:
    """Measure what is asked for."""
    lists = {"features": ["sign", "he_normal"], "widths": [64, 128, 256]}
    lists |= {"precisions": ["bfloat16", "float64"]}
    parser = command_line.parser(
        __doc__, "sections*", **lists, outputs={"type": Path}, fresh=False, row=ROW
    )
    args = parser.parse_args()
    if args.row:
        section, *about = json.loads(args.row)
        print(json.dumps({"products": time_products, "solves": time_solve}[section](*about)))
        return
    command_line.require(parser, "features", args.features, DISTRIBUTIONS)
    command_line.require(parser, "section", args.sections, SECTIONS)
    command_line.require(parser, "precision", args.precisions, PRECISIONS)
    if "int8" in args.precisions and set(args.features) != {"sign"}:
        parser.error("--precisions int8 is for --features sign")
    if "solves" in args.sections and min(args.widths) > LARGEST_SOLVE:
        parser.error(f"--widths: layers wider than {LARGEST_SOLVE} are not solved")
    for section in args.sections or SECTIONS:
        path = None if args.outputs is None else args.outputs / f"{section}.json"
        rows = measure_missing(path, wanted_rows(section, args), measure, args.fresh)
        if section == "solves" and max(args.widths) > LARGEST_SOLVE:
            print(f"solves: no widths above {LARGEST_SOLVE}", file=sys.stderr)
        if rows:
            print(report(section, rows, args.outputs), "\n")


if __name__ == "__main__":
    main()
