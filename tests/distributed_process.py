"""A layer solved by several processes, each with a share of the features.

    python tests/distributed_process.py RANK PROCESSES FOLDER LAST FEATURES,STORAGE ...

Writes products and solution of each case to FOLDER, its state after every iteration too, and ends
at the state LAST, or not where that is 0.
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
from bnrecon.run.layer_checkpoint import LayerCheckpoint
from bnrecon.runtime.errors import UserError
from bnrecon.solvers import iterative


def plan(features, storage):
    """Of a layer; with the storage "rank" its weights differ by process."""
    own = storage == "rank"
    torch.manual_seed(distributed.get_rank() if own else 0)
    storage = "memory" if own else storage
    spec = bnrecon.FeatureSpec(features, storage=storage)
    return bnrecon.plan_layers(nn.Conv2d(8, 8, 3).eval(), spec)


class EndsAfter(LayerCheckpoint):
    """Keeps every state; after so many the process ends."""

    left = 0

    def save(self, state):
        super().save(state)
        self.left -= 1
        if self.left == 0:
            os._exit(3)


def products(matrix):
    """The products of a matrix with the same vectors each time, and some of its columns."""
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
        layer = plan(*case.split(",")).layers[0]
        matrix = distributed_operator(layer.draw(), torch.device("cpu"))
        state = Path(folder, f"{case}.state")
        checkpoint = EndsAfter(state, {"layer": layer.name}, seconds=0)
        checkpoint.left = int(last)
        try:
            solution = bnrecon.solve_layer(layer, checkpoint, distributed=True)
        except UserError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(2)
        stem = f"{folder}/{case}-{rank}"
        save_file(products(matrix) | {"scale": solution.scale}, f"{stem}.safetensors")
        Path(f"{stem}.json").write_text(json.dumps(vars(solution.report)))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
