#!/usr/bin/env python3
"""Rebuild one layer of a torchvision model at its full size, and test it within the model.

    python scripts/solve_layer.py resnet18 layer4.0.conv1 --threads 2   # n = 1,179,648: 77 min
    python scripts/solve_layer.py resnet50 layer2.0.conv1               # n = 32,768: seconds
    python scripts/solve_layer.py resnet18 layer1.0.conv1 --features he_normal

For networks that take a day as a whole: one of their large layers tells what the others take. The
model has random weights (seed 0). The layer is given 1.5 n features, drawn from the seed 0, solved
to 1e-10 and put into the model, whose logits are compared with what they were on two random images.
In a process of its own, on --threads threads; the machine should be idle, or see the processor's
time. Resumable: the state of a solve is kept every minute, and the same command goes on from it; a
row that is there is not measured again. Results: layers.{json,md} in --outputs.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from pathlib import Path

import torch
from bench_rows import in_process, measure_missing, memory_status, parse, write_table
from torchvision import models

import bnrecon
from bnrecon.run.layer_checkpoint import LayerCheckpoint
from bnrecon.runtime.errors import UserError

IMAGES = 2
COLUMNS = {
    "model": "{model}",
    "layer": "{layer}",
    "features": "{features}",
    "n": "{n:,}",
    "c1": "{c1:,}",
    "threads": "{threads}",
    "seconds": "{seconds:,.3g}",
    "processor": "{processor_seconds:,.3g}",  # nothing where another process spent a part
    "iterations": "{iterations}",
    "products": "{products}",
    "residual": "{residual:.1e}",
    "error in float32": "{assembled_error:.1e}",
    "logits differ by": "{difference:.1e} of {logits:.2g}",
    "memory": "{memory}",
}


def main() -> int:
    """Measure the layer unless it is there, and write the table of all that are."""
    folder = Path("outputs/solvers/layers")
    parser, args = parse(__doc__, rebuild, "names*", features="sign", threads=1, outputs=folder)
    if len(args.names) != 2:
        parser.error("give a model of torchvision and one of its layers")
    model, layer = args.names
    wanted = {"model": model, "layer": layer, "features": args.features, "threads": args.threads}
    try:
        plan_one(wanted)
    except UserError as error:
        parser.error(str(error))

    def measure(row: dict) -> dict:
        return in_process(__file__, row | {"outputs": str(args.outputs)}, args.threads)

    rows = measure_missing(args.outputs / "layers.json", [wanted], measure)
    if rows:
        write_report(rows, args.outputs)
    return 0 if any(wanted.items() <= row.items() for row in rows) else 1


def plan_one(row: dict) -> bnrecon.Plan:
    """A plan of this layer alone; ``UserError`` where there is no such model or layer."""
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


def rebuild(row: dict) -> dict:
    """Solve the layer, put it into the model, and compare logits."""
    outputs = Path(row.pop("outputs"))
    plan = plan_one(row)
    layer = plan.layers[0]
    images = torch.randn(IMAGES, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    name = "-".join(str(value) for value in row.values())
    path = outputs / f"unfinished-{name}.safetensors"
    checkpoint = LayerCheckpoint(path, row | {"name": layer.name, "width": layer.width})
    started, spent = time.perf_counter(), time.process_time()
    solution = bnrecon.solve_layer(layer, checkpoint)
    seconds, processor = time.perf_counter() - started, time.process_time() - spent
    memory = memory_status("VmHWM")
    rebuilt = bnrecon.assemble(plan, {layer.name: solution})
    with torch.no_grad():
        expected = plan.model(images)
        difference = (rebuilt.network(images) - expected).abs().max().item()
    path.unlink(missing_ok=True)
    report = rebuilt.layers[0]
    return {
        "n": report.equations,
        "c1": report.width,
        "seconds": checkpoint.before + seconds,
        "processor_seconds": None if checkpoint.before else processor,
        "iterations": solution.report.iterations,
        "products": solution.report.precision,
        "residual": solution.report.relative_residual,
        "error": report.relative_error,
        "assembled_error": report.assembled_error,
        "logits": expected.abs().max().item(),
        "difference": difference,
        "memory": memory,
    }


def write_report(rows: list[dict], outputs: Path) -> None:
    """All rows as Markdown, with the commands that measure them."""
    rows = sorted(rows, key=lambda row: (row["n"], row["model"], row["layer"], row["features"]))
    options = "{model} {layer} --features {features} --threads {threads}"
    commands = [f"`python scripts/solve_layer.py {options.format(**row)}`" for row in rows]
    words = f"""\
Random weights of seed 0, 1.5 n features, to 1e-10. Seconds of drawing and solving are the clock's,
beside the processor's; the residual is recomputed in float64; the error in float32 is that of the
layer as the network holds it; memory is the most that the process held until then. Logits: the
largest of {IMAGES} random images, and the largest change when this layer alone is rebuilt.
Commands: {"; ".join(commands)}."""
    write_table(outputs / "layers.md", rows, COLUMNS, words)


if __name__ == "__main__":
    sys.exit(main())
