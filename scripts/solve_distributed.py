#!/usr/bin/env python3
"""Rebuild one layer in several processes, each with a share of the features; measure the exchange.

    torchrun --nproc-per-node 2 scripts/solve_distributed.py                    # n = 36,864: 10 s
    torchrun --nproc-per-node 2 scripts/solve_distributed.py --width 128        # n = 147,456: 1 min
    torchrun --nproc-per-node 8 scripts/solve_distributed.py --width 512 --device cuda
    OMP_NUM_THREADS=2 python scripts/solve_distributed.py                       # one process

A 3x3 layer, c0 = c2 = width, of a random target, with 1.5 n features from seed 0, to 1e-10. Each
process has OMP_NUM_THREADS threads, by torchrun's default one; the machine should be idle.
Results: distributed.{json,md} in --outputs; to measure an existing row again, remove it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import command_line
import torch
from bench_rows import measure_missing, random_layer, timed, timed_solve, write_table

from bnrecon.runtime import distributed, hardware


def main() -> None:
    """Measure a row in all processes; only the first writes it."""
    options = {"features": "sign", "width": 64, "device": "cpu"}
    options |= {"outputs": Path("outputs/solvers/distributed")}
    args = command_line.parser(__doc__, **options).parse_args()
    device = hardware.resolve_device(args.device)
    with distributed.join_processes(device):
        rank, processes = distributed.rank_and_world_size()
        names = {"features": args.features, "width": args.width, "processes": processes}
        names |= {"threads": torch.get_num_threads(), "device": hardware.describe_device(device)}
        measured = measure(args.features, args.width, device)
    if rank > 0:
        return
    rows = measure_missing(args.outputs / "distributed.json", [names], lambda _: measured)
    rows.sort(key=lambda row: (row["width"], row["features"], row["processes"], row["threads"]))
    write_table(args.outputs / "distributed.md", rows)


def measure(features: str, width: int, device: torch.device) -> dict:
    """Time the solution of the layer, and the seconds and bytes of exchanges."""
    storage = "regenerate" if features == "sign" else "memory"
    layer = random_layer(features, width, storage, device=device)
    seconds, numbers = [], []

    def watched(exchange: Callable) -> Callable:
        def call(*tensors):
            seconds.append(timed(exchange, *tensors)[1]["seconds"])
            numbers.append(tensors[-1].nbytes)  # of this process

        return mock.patch.object(torch.distributed, exchange.__name__, call)

    with watched(torch.distributed.all_reduce), watched(torch.distributed.all_gather):
        _, solved = timed_solve(layer, distributed=torch.distributed.is_initialized())
    megabytes = sum(numbers) / solved["iterations"] / 1e6
    return solved | {"exchanging": sum(seconds), "megabytes": megabytes}


if __name__ == "__main__":
    main()
