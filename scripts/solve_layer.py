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
row that is there is not measured again (--fresh does so). Results: layers.{json,md} in --outputs.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from pathlib import Path

import command_line
import pandas as pd
import torch
from bench_rows import ROW, in_process, measure_missing, memory_status
from torchvision import models

import bnrecon
from bnrecon.reporting import tables
from bnrecon.run.layer_checkpoint import LayerCheckpoint
from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.units import format_bytes

IMAGES = 2


def main() -> int:
    """Measure the layer unless it is there, and write the table of all that are."""
    options = {"features": "sign", "threads": 1, "fresh": False}
    parser = command_line.parser(
        __doc__, "names*", **options, outputs=Path("outputs/solvers/layers"), row=ROW
    )
    args = parser.parse_args()
    if args.row:
        about, outputs = json.loads(args.row)
        print(json.dumps(rebuild(about, Path(outputs))))
        return 0
    if len(args.names) != 2:
        parser.error("give a model of torchvision and one of its layers")
    model, layer = args.names
    about = {"model": model, "layer": layer, "features": args.features, "threads": args.threads}
    try:
        plan_one(about)
    except UserError as error:
        print(f"solve_layer: {error}", file=sys.stderr)
        return 2

    def measure(about: dict) -> dict:
        return in_process(__file__, (about, str(args.outputs)), about["threads"])

    rows = measure_missing(args.outputs / "layers.json", [about], measure, args.fresh)
    if rows:
        print(write_table(rows, args.outputs))
    return 0 if any(about.items() <= row.items() for row in rows) else 1


def plan_one(about: dict) -> bnrecon.Plan:
    """A plan of this layer alone; ``UserError`` where there is no such model or layer."""
    if about["model"] not in models.list_models(models):
        raise UserError(f"{about['model']}: no classification model of torchvision")
    torch.manual_seed(0)
    model = models.get_model(about["model"]).eval()
    spec = bnrecon.FeatureSpec(about["features"])
    plan = bnrecon.plan_layers(model, spec, "matrix_free", unsupported="keep")
    layers = [layer for layer in plan.layers if layer.name == about["layer"]]
    if not layers:
        some = ", ".join(layer.name for layer in plan.layers[-3:])
        raise UserError(f"{about['model']} has no layer {about['layer']} to rebuild; it has {some}")
    return dataclasses.replace(plan, layers=layers)


def rebuild(about: dict, outputs: Path) -> dict:
    """Solve the layer, put it into the model, and compare logits."""
    plan = plan_one(about)
    layer = plan.layers[0]
    images = torch.randn(IMAGES, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    name = "-".join(str(value) for value in about.values())
    path = outputs / f"unfinished-{name}.safetensors"
    checkpoint = LayerCheckpoint(path, about | {"name": layer.name, "width": layer.width})
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


def write_table(rows: list[dict], outputs: Path) -> str:
    """All rows as Markdown, with the commands that measure them."""
    rows = sorted(rows, key=lambda row: (row["n"], row["model"], row["layer"], row["features"]))
    table = tables.markdown(
        pd.DataFrame(
            {
                "model": row["model"],
                "layer": row["layer"],
                "features": row["features"],
                "n": f"{row['n']:,}",
                "c1": f"{row['c1']:,}",
                "threads": row["threads"],
                "seconds": f"{row['seconds']:,.3g}",
                # Nothing where another process spent a part
                "processor": f"{row['processor_seconds']:,.3g}" if row["processor_seconds"] else "",
                "iterations": row["iterations"],
                "products": row["products"],
                "residual": f"{row['residual']:.1e}",
                "error in float32": f"{row['assembled_error']:.1e}",
                "logits differ by": f"{row['difference']:.1e} of {row['logits']:.2g}",
                "memory": format_bytes(row["memory"]),
            }
            for row in rows
        )
    )
    text = f"""\
Random weights of seed 0, 1.5 n features, to 1e-10. Seconds of drawing and solving are the clock's,
beside the processor's; the residual is recomputed in float64; the error in float32 is that of the
layer as the network holds it; memory is the most that the process held until then. Logits: the
largest of {IMAGES} random images, and the largest change when this layer alone is rebuilt.
Commands: {"; ".join(command(row) for row in rows)}."""
    files.write_text(outputs / "layers.md", f"{table}\n\n{text}\n")
    return table


def command(row: dict) -> str:
    """What measures a row."""
    words = f"{row['model']} {row['layer']} --features {row['features']}"
    return f"`python scripts/solve_layer.py {words} --threads {row['threads']}`"


if __name__ == "__main__":
    sys.exit(main())
