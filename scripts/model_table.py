#!/usr/bin/env python3
"""Rebuild every classification model of torchvision, small and with random weights.

    python scripts/model_table.py [--rows FILE] [--only NAME ...] [--operations COUNT] [--timm]
    python scripts/model_table.py --write

Each model is rebuilt twice: by id_cond features, whose solution is known in closed form, and by
he_normal features with 1.5 features an equation, as many layers, the smallest first, as are solved
with ``--operations`` (6e10: some ten seconds of a core). A finished model is a line of JSON in
``--rows`` (build/models.jsonl); models that are there are not computed again. ``--write`` makes
docs/models.md of the lines. ``--timm`` rebuilds ten models of timm instead, where that is
installed, and prints what came out.

Weights are random, since none are downloaded; BatchNorm's statistics come from one batch in
training mode. Networks are made small by the arguments of their classes (``SMALLER``), and run in
float64, so that a difference of outputs is one of the reconstruction.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import sys
import time
from collections import Counter
from pathlib import Path

import torch
import torchvision
from small_models import CLASSES, SMALLER, Small, build
from torch import nn
from torchvision import models

from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction import assemble, gather, plan_layers, solve_layer
from bnrecon.runtime import files
from bnrecon.runtime.errors import RunError, UserError

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/models.md"
BATCH = 4
TOO_LARGE = "too large for this table"
LARGEST = 3_000_000  # equations of a layer, above which its head is left as it is
ITERATIONS = 130  # of a solve with 1.5 features an equation
TIMM = (
    "resnet10t", "mobilenetv3_small_050", "efficientnet_lite0", "ghostnet_050", "lcnet_050",
    "vit_tiny_patch16_224", "mixer_s32_224", "convnext_atto", "edgenext_xx_small", "repvgg_a0",
)  # fmt: skip


def enliven(model: nn.Module, images: torch.Tensor) -> nn.Module:
    """Draw what is zero or nearly so at the start, and normalize by the statistics of a batch."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(False)
        if float(parameter.abs().max()) < 1e-3 or "norm" in name.lower():
            nn.init.normal_(parameter, float(parameter.mean()), 0.1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None  # the average, here of one batch
            nn.init.normal_(module.weight, 1, 0.2)
            nn.init.normal_(module.bias, 0, 0.2)
    with torch.no_grad():
        model.train()(images)
    return model.eval()


def rebuild(model: nn.Module, images: torch.Tensor, features: FeatureSpec, most: float) -> dict:
    """One reconstruction: what was rebuilt and kept, how far the outputs are, how long it took."""
    started = time.perf_counter()
    plan = plan_layers(model, features, unsupported="keep", images=images)
    found = len(plan.layers) + len(plan.kept)
    # What memory is free differs by machine; such a layer is too large here in any case.
    kept = Counter(TOO_LARGE if " are free" in why else why for why in plan.kept.values())
    layers, cost = [], 0.0
    for layer in sorted(plan.layers, key=lambda layer: layer.shape.equations):
        n = layer.shape.equations
        own = layer.groups * 4 * ITERATIONS * n * layer.width
        cost += 0.0 if features.name == "id_cond" else own
        if layer.groups * n > LARGEST or cost > most:
            kept[TOO_LARGE] += 1
        else:
            layers.append(layer)
    plan = dataclasses.replace(plan, layers=layers)
    moments = gather(plan.model, [layer.found for layer in layers], [images])
    rebuilt = assemble(plan, {layer.name: solve_layer(layer) for layer in layers}, moments)
    seconds = time.perf_counter() - started
    with torch.no_grad():
        ours, theirs = rebuilt.network(images), model(images)
    return {
        "layers": found,
        "rebuilt": len(rebuilt.layers),
        "converged": sum(layer.converged for layer in rebuilt.layers),
        "kept": dict(kept),
        "layer_error": max(layer.relative_error for layer in rebuilt.layers),
        "difference": float((ours - theirs).abs().max() / theirs.abs().max()),
        "seconds": seconds,
    }


FEATURES = (FeatureSpec("id_cond"), FeatureSpec("he_normal", oversampling=1.5))


def row(
    name: str, model: nn.Module, small: Small, features: FeatureSpec, operations: float
) -> dict:
    """A model's line with one reconstruction, or why there is none."""
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, small.side, small.side, dtype=torch.float64)
    model = enliven(model.double(), images)
    entry = {
        "model": name,
        "class": type(model).__name__,
        "side": small.side,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "threads": torch.get_num_threads(),
    }
    try:
        return entry | {features.name: rebuild(model, images, features, operations)}
    except (UserError, RunError) as error:
        return entry | {features.name: {"error": str(error)}}


def read_rows(file: Path) -> dict[str, dict]:
    """The lines of a file by model; a line that was cut off by an interrupt does not count."""
    rows = {}
    for line in file.read_text().splitlines() if file.is_file() else []:
        with contextlib.suppress(ValueError, KeyError, TypeError):
            entry = json.loads(line)
            rows[entry["model"]] = entry
    return rows


def compute(names: list[str], file: Path, operations: float) -> None:
    """Compute what a file does not have: id_cond for all models, then he_normal."""
    file.parent.mkdir(parents=True, exist_ok=True)
    done = read_rows(file)
    for features in FEATURES:
        for name in names:
            if features.name in done.get(name, {}):
                continue
            torch.manual_seed(0)
            entry = row(name, *build(name), features, operations)
            done[name] = done.get(name, {}) | entry
            files.write_text(file, "".join(json.dumps(done[key]) + "\n" for key in done))
            print(name, describe(entry, features), flush=True)


def describe(entry: dict, features: FeatureSpec) -> str:
    """One line for a terminal."""
    found = entry[features.name]
    if "error" in found:
        return f"{features.name}: {found['error']}"
    return (
        f"{features.name}: {found['rebuilt']} of {found['layers']} layers, outputs differ by "
        f"{found['difference']:.1e}, {found['seconds']:.0f} s"
    )


def _cells(found: dict | None) -> list[str]:
    """A reconstruction's cells: rebuilt layers, difference and seconds."""
    if found is None:
        return ["not computed", "", ""]
    if "error" in found:
        return [f"refused: {found['error']}".replace("|", "/"), "", ""]
    return [str(found["rebuilt"]), f"{found['difference']:.0e}", f"{found['seconds']:.0f}"]


def page(rows: dict[str, dict]) -> str:
    """docs/models.md."""
    last = next(reversed(rows.values()))
    errors = [
        entry[features.name]["layer_error"]
        for entry in rows.values()
        for features in FEATURES
        if "layer_error" in entry.get(features.name, {})
    ]
    lines = [
        "# Models",
        "",
        "Every classification model of torchvision, made small and with random weights, rebuilt",
        "in float64. Made by `python scripts/model_table.py`, then `--write`",
        f"(torch {last['torch']}, torchvision {last['torchvision']}, {last['threads']} thread on a",
        "machine that others used at the same time).",
        "",
        "- *layers*: convolutions, linear layers and projections of attention in the network;",
        "  *rebuilt*: those that are source layers in the result. The others are left as they are,",
        "  for the [reasons below](#layers-left-as-they-are).",
        "- *difference*: the largest difference of two logits, relative to the largest logit.",
        f"  Each layer is within {max(errors, default=0.0):.0e} of its target; what is more",
        "  in the outputs of a deep network is that network's own amplification.",
        "- *seconds*: planning, statistics of four images, drawing, solving, assembling, checking.",
        "- With `id_cond` the solution is known in closed form. With `he_normal` at 1.5 features",
        "  an equation layers are solved, the smallest first, as far as 6e10 operations go.",
        "",
        "| model | layers | `id_cond` rebuilt | difference | seconds | `he_normal` rebuilt "
        "| difference | seconds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name in sorted(rows):
        entry = rows[name]
        cells = [name, str(entry.get("id_cond", {}).get("layers", ""))]
        cells += [cell for features in FEATURES for cell in _cells(entry.get(features.name))]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## Layers left as they are", "", "| reason | models (layers) |", "|---|---|"]
    reasons: dict[str, list[str]] = {}
    for name in sorted(rows):
        for reason, count in rows[name].get("id_cond", {}).get("kept", {}).items():
            reasons.setdefault(reason, []).append(f"{name} ({count})")
    lines += [f"| {reason} | {', '.join(where)} |" for reason, where in sorted(reasons.items())]
    lines += [
        "",
        f"Too large for this table is a layer of more than {LARGEST:,} weights; its statistics and",
        "scales alone would take 48 bytes a weight.",
        "",
        "## How they were made small",
        "",
        "| class | size | image |",
        "|---|---|---:|",
    ]
    used = sorted({entry["class"] for entry in rows.values()} & set(SMALLER))
    lines += [
        f"| {kind} | {SMALLER[kind].words} | {SMALLER[kind].side} x {SMALLER[kind].side} |"
        for kind in used
    ]
    lines += [
        "",
        "BatchNorm's statistics are those of one batch in training mode, its scales and shifts are",
        "random. Weights that are zero or nearly so at the start (a head of a vision transformer,",
        "ConvNeXt's layer scale) are drawn anew.",
    ]
    return "\n".join(lines) + "\n"


def compute_timm(operations: float) -> int:
    """Rebuild ten models of timm, and print what came out."""
    try:
        import timm
    except ImportError:
        print("timm is not installed: pip install timm", file=sys.stderr)
        return 2
    for name, features in itertools.product(TIMM, FEATURES):
        torch.manual_seed(0)
        model = timm.create_model(name, num_classes=CLASSES)
        small = Small("", side=224 if "224" in name else 64)
        entry = row(name, model, small, features, operations)
        print(name, describe(entry, features), flush=True)
    return 0


def main() -> int:
    """Compute what is missing, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=Path, default=ROOT / "build/models.jsonl", metavar="FILE")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--operations", type=float, default=6e10, metavar="COUNT")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--timm", action="store_true", help="ten models of timm instead")
    parser.add_argument("--write", action="store_true", help="write docs/models.md")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.timm:
        return compute_timm(arguments.operations)
    if arguments.write:
        rows = read_rows(arguments.rows)
        if not rows:
            print(f"{arguments.rows}: no model in it; run without --write first", file=sys.stderr)
            return 2
        files.write_text(PAGE, page(rows))
        return 0
    known = models.list_models(module=models)
    if unknown := set(arguments.only or ()) - set(known):
        print(f"--only: torchvision has no {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    compute(arguments.only or known, arguments.rows, arguments.operations)
    return 0


if __name__ == "__main__":
    sys.exit(main())
