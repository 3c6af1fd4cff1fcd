#!/usr/bin/env python3
"""Rebuild one layer of a full-size torchvision model, and test it within the model.

    python scripts/solve_layer.py resnet18 layer4.0.conv1 --threads 2   # n = 1,179,648: 77 min
    python scripts/solve_layer.py resnet50 layer2.0.conv1               # n = 32,768: seconds
    python scripts/solve_layer.py resnet18 layer1.0.conv1 --features he_normal

For networks that would take a day as a whole. The model has random weights (seed 0). The layer gets
1.5 n features from seed 0, is solved to 1e-10 and put into the model, whose logits on two random
images are compared with those before. It runs in its own process, on --threads threads; the machine
should be idle, otherwise see the processor's time. Resumable: the state of a solve is saved every
minute; existing rows are not measured again. Results: layers.{json,md} in --outputs.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from pathlib import Path

import command_line
import torch
from bench_rows import apart, measure_missing, memory_status, timed_solve, write_table
from torchvision import models

import bnrecon
from bnrecon.run.layer_checkpoint import LayerCheckpoint
from bnrecon.runtime.errors import UserError

IMAGES = 2


def main() -> int:
    """Measure the layer unless its row exists, and write the table of all rows."""
    options = {"features": "sign", "threads": 1, "outputs": Path("outputs/solvers/layers")}
    parser = command_line.parser(__doc__, "model", "layer", **options)
    args = parser.parse_args()
    requested = {name: getattr(args, name) for name in ("model", "layer", "features", "threads")}
    try:
        plan_one(requested)
    except UserError as error:
        parser.error(str(error))
    measure = functools.partial(apart, rebuild, args.outputs, threads=args.threads)
    rows = measure_missing(args.outputs / "layers.json", [requested], measure)
    rows.sort(key=lambda row: (row["n"], row["model"], row["layer"], row["features"]))
    write_table(args.outputs / "layers.md", rows, images=IMAGES)
    return 0 if any(requested.items() <= row.items() for row in rows) else 1


def plan_one(row: dict) -> bnrecon.Plan:
    """A plan of only this layer; ``UserError`` if there is no such model or layer."""
    if row["model"] not in models.list_models(models):
        raise UserError(f"{row['model']}: no classification model of torchvision")
    torch.manual_seed(0)
    model = models.get_model(row["model"]).eval()
    spec = bnrecon.FeatureSpec(row["features"])
    plan = bnrecon.plan_layers(model, spec, "matrix_free", unsupported="keep")
    layers = [layer for layer in plan.layers if layer.name == row["layer"]]
    if not layers:
        some = ", ".join(layer.name for layer in plan.layers[-3:])
        raise UserError(f"{row['model']} has no layer {row['layer']} to rebuild; it has {some}")
    return dataclasses.replace(plan, layers=layers)


def rebuild(outputs: Path, row: dict) -> dict:
    """Solve the layer, put it into the model, and compare logits."""
    plan = plan_one(row)
    layer = plan.layers[0]
    images = torch.randn(IMAGES, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    name = "-".join(str(value) for value in row.values())
    path = outputs / f"unfinished-{name}.safetensors"
    checkpoint = LayerCheckpoint(path, row | {"name": layer.name, "width": layer.width})
    solution, solved = timed_solve(layer, checkpoint=checkpoint)
    memory = memory_status("VmHWM")
    rebuilt = bnrecon.assemble(plan, {layer.name: solution})
    with torch.no_grad():
        expected = plan.model(images)
        difference = (rebuilt.network(images) - expected).abs().max().item()
    path.unlink(missing_ok=True)
    report = rebuilt.layers[0]
    solved["seconds"] += checkpoint.before
    if checkpoint.before:
        solved["processor_seconds"] = None
    return solved | {
        "error": report.relative_error,
        "assembled_error": report.assembled_error,
        "logits": expected.abs().max().item(),
        "difference": difference,
        "memory": memory,
    }


if __name__ == "__main__":
    sys.exit(main())
