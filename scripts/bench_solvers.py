#!/usr/bin/env python3
"""Solvers against each other and against alternatives, on one machine, as one table.

    python scripts/bench_solvers.py                      # everything: 45 min on two cores, 12 GB
    python scripts/bench_solvers.py products oversampled # some sections only
    python scripts/bench_solvers.py --quick              # small sizes, outputs/solvers/quick: 1 min
    python scripts/bench_solvers.py whole --fresh        # measure what is there again

Sections: products, oversampled, square, frontier, scaling, whole, contention. Each row runs in a
process of its own, which measures its peak memory; the machine should be idle. Resumable: rows that
are in the results are not measured again. Residuals are recomputed from the operator in float64, at
the minimum width as ‖W' - W‖ / ‖W‖ with both scales; the target is standard normal, the features
are he_normal from seed 0, or sign where the method says so. Results:
outputs/solvers/<device>/{bench.json,bench.md,bench.csv,frontier.*,scaling.*}.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from bench_rows import in_process, measure_missing

ROW = str(Path(__file__).with_name("bench_solvers_row.py"))  # measures one row
SECTIONS = ("products", "oversampled", "square", "frontier", "scaling", "whole", "contention")


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
        "matrix_free sign",
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
    for oversampling in (2.0, 1.5, 1.2, 1.1, 1.05, 1.03, 1.02, 1.01, 1.007, 1.005):
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
    for method, oversampling in (("auto", 1.5), ("auto sign", 1.5), ("auto", 1.035)):
        rows.append(
            {"section": "whole", "method": method, "width": width, "oversampling": oversampling}
        )
    for method in ("alone", "beside another process"):
        rows.append(
            {"section": "contention", "method": method, "width": small // 2, "oversampling": 1.5}
        )
    return rows


def key(row: dict) -> tuple:
    """What identifies a row."""
    return row["section"], row["method"], row["width"], row["oversampling"]


def main() -> None:
    """Measure what is missing, then write the table."""
    args = read_arguments()
    import torch
    from bench_solvers_report import report

    on_gpu = args.device == "cuda" or (args.device == "auto" and torch.cuda.is_available())
    folder = Path(args.outputs) / ("quick" if args.quick else "") / ("cuda" if on_gpu else "cpu")
    rows = measured(args, folder / "bench.json")
    command = " ".join(["python scripts/bench_solvers.py", *(["--quick"] if args.quick else [])])
    print(report(rows, folder, command))


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--outputs", default="outputs/solvers")
    args = parser.parse_args()
    if unknown := set(args.sections) - set(SECTIONS):
        parser.error(
            f"no such section: {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}"
        )
    return args


def measured(args: argparse.Namespace, path: Path) -> list[dict]:
    """The rows of ``path``, what it lacks of the sections being measured; all in order."""
    order = plan(args.quick)
    wanted = [row for row in order if not args.sections or row["section"] in args.sections]
    rows = measure_missing(path, wanted, lambda row: measure(row, args.device), args.fresh)
    place = {key(row): number for number, row in enumerate(order)}
    return sorted((row for row in rows if key(row) in place), key=lambda row: place[key(row)])


def measure(row: dict, device: str) -> dict:
    """Measure a row in a process of its own."""
    print(
        f"{row['section']:<12} {row['method']:<28} width {row['width']:<4} "
        f"c1/n {row['oversampling']}",
        flush=True,
    )
    found = in_process(ROW, row | {"device": device})
    print(
        f"   {found.get('seconds', math.nan):.3g} s, "
        f"residual {found.get('residual', math.nan):.1e}, {found.get('note', '')}",
        flush=True,
    )
    return found


if __name__ == "__main__":
    main()
