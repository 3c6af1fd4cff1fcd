"""Solve a layer by several processes, each with a share of the features.

    python tests/distributed_process.py RANK PROCESSES FOLDER LAST FEATURES,STORAGE ...

Writes the products and solution of each case to FOLDER, and its state after every iteration; ends
at the state LAST unless it is 0.
"""

import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import distributed, nn

import bnrecon
from bnrecon.features.matrix import distributed_operator
from bnrecon.operators.integers import IntegerGradients
from bnrecon.run.layer_checkpoint import LayerCheckpoint
from bnrecon.runtime.errors import UserError
from bnrecon.solvers import iterative


def plan(features, storage, differs="nothing", rank=0):
    """The plan of a layer, which may differ by process."""
    torch.manual_seed(rank if differs == "target" else 0)
    spec = bnrecon.FeatureSpec(features, storage=storage)
    seed = rank if differs == "seed" else 0
    return bnrecon.plan_layers(nn.Conv2d(8, 8, 3).eval(), spec, seed=seed)


class EndsAfter(LayerCheckpoint):
    """Stores every state, and ends the process after some of them."""

    seconds, remaining, saved = 0.0, 0, 0

    def save(self, state):
        super().save(state)
        self.saved += 1
        self.remaining -= 1
        if self.remaining == 0:
            os._exit(3)


def products(matrix):
    """Products of a matrix with fixed vectors, and some of its columns."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(size, 2, generator=generator).double() for size in matrix.shape[::-1])
    return {
        "M x": matrix.matvec(x),
        "M^T y": matrix.rmatvec(y),
        "columns": matrix.columns(slice(5, 9)).contiguous(),
        "norms": matrix.column_norms(),
    }


def main():
    rank, count, folder, last, *cases = sys.argv[1:]
    torch.set_num_threads(1)
    iterative.BF16_ENTRIES = 0  # as for a large layer
    store = distributed.FileStore(f"{folder}/store-{count}", int(count))
    distributed.init_process_group("gloo", store=store, rank=int(rank), world_size=int(count))
    for case in cases:
        layer = plan(*case.split(","), rank=int(rank)).layers[0]
        matrix = distributed_operator(layer.draw(), torch.device("cpu"))
        checkpoint = EndsAfter(Path(folder, f"{rank}.state"), {"case": case})
        checkpoint.remaining = int(last)
        if case.endswith("checkpoint") and rank != "0":
            checkpoint = None
        if case.endswith("suits"):
            IntegerGradients.suit = staticmethod(lambda _: rank == "0")
        try:
            solution = bnrecon.solve_layer(layer, checkpoint, distributed=True)
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            distributed.destroy_process_group()
            sys.exit(2)
        stem = f"{folder}/{case}-{rank}"
        save_file(products(matrix) | {"scale": solution.scale}, f"{stem}.safetensors")
        told = vars(solution.report) | {"saved": checkpoint.saved}
        Path(f"{stem}.json").write_text(json.dumps(told))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
