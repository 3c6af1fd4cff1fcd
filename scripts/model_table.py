#!/usr/bin/env python3
"""Rebuild every classification model of torchvision, small and with random weights.

    python scripts/model_table.py [--timm]           # compute what outputs/models lacks
    python scripts/model_table.py [--timm] --write   # write docs/models.md of it

Each model is rebuilt twice: by id_cond features, whose solution is known in closed form, and by
he_normal features with 1.5 features per equation, as many layers, the smallest first, as are solved
with 6e10 operations (some ten seconds of a core). A finished model is a line of JSON in
outputs/models/torchvision.jsonl; models that are there are not computed again. With ``--timm`` the
models are ten of timm's, as it makes them, the file is timm.jsonl and the page docs/models-timm.md;
timm has to be installed.

Weights are random, since none are downloaded; BatchNorm's statistics come from one batch in
training mode. Networks are made small by the arguments of their classes (``SMALLER``), and run in
float64, so that a difference of outputs is one of the reconstruction.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import command_line
import torch
from small_models import CLASSES, SMALLER, Small, build
from torch import nn
from torchvision import models

from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction import assemble, gather, plan_layers, solve_layer
from bnrecon.runtime import files

ROOT = Path(__file__).resolve().parents[1]
BATCH = 4
TOO_LARGE = "too large for this table"
LARGEST = 3_000_000  # equations of a layer, above which its head is left as it is
OPERATIONS = 6e10  # that are spent on a model with he_normal features
ITERATIONS = 130  # of a solve with 1.5 features per equation
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
    # What memory is free differs by machine; such a layer is too large here in any case.
    kept = Counter(TOO_LARGE if " are free" in why else why for why in plan.kept.values())
    layers, cost = [], 0.0
    for layer in sorted(plan.layers, key=lambda layer: layer.shape.equations):
        n = layer.shape.equations
        if features.name != "id_cond":
            cost += layer.groups * 4 * ITERATIONS * n * layer.width
        if layer.groups * n > LARGEST or cost > most:
            kept[TOO_LARGE] += 1
        else:
            layers.append(layer)
    chosen = dataclasses.replace(plan, layers=layers)
    moments = gather(chosen.model, [layer.found for layer in layers], [images])
    rebuilt = assemble(chosen, {layer.name: solve_layer(layer) for layer in layers}, moments)
    seconds = time.perf_counter() - started
    with torch.no_grad():
        ours, theirs = rebuilt.network(images), model(images)
    return {
        "layers": len(plan.layers) + len(plan.kept),
        "rebuilt": len(rebuilt.layers),
        "converged": sum(layer.converged for layer in rebuilt.layers),
        "kept": dict(kept),
        "layer_error": max((layer.relative_error for layer in rebuilt.layers), default=0.0),
        "difference": float((ours - theirs).abs().max() / theirs.abs().max()),
        "seconds": seconds,
    }


FEATURES = (FeatureSpec("id_cond"), FeatureSpec("he_normal", oversampling=1.5))


def row(
    name: str, model: nn.Module, small: Small, features: FeatureSpec, operations: float
) -> dict:
    """A model's line with one reconstruction."""
    torch.manual_seed(0)
    images = torch.randn(BATCH, 3, small.side, small.side, dtype=torch.float64)
    model = enliven(model.double(), images)
    return {
        "model": name,
        "class": type(model).__name__,
        "side": small.side,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        features.name: rebuild(model, images, features, operations),
    }


def read_rows(file: Path) -> dict[str, dict]:
    """The lines of a file by model."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return {entry["model"]: entry for entry in map(json.loads, lines)}


def build_timm(name: str) -> tuple[nn.Module, Small]:
    """A model of timm, as it is."""
    import timm

    size = Small("as it is", side=224 if "224" in name else 64)
    return timm.create_model(name, num_classes=CLASSES), size


@dataclasses.dataclass(frozen=True)
class Library:
    """Whose models they are, how one is made, and the page they are on."""

    name: str
    models: list[str]
    build: Callable[[str], tuple[nn.Module, Small]]
    page: Path
    words: str


TORCHVISION = Library(
    "torchvision",
    models.list_models(module=models),
    build,
    ROOT / "docs/models.md",
    "Every classification model of torchvision, made small and with random weights, rebuilt",
)
TEN_OF_TIMM = Library(
    "timm",
    list(TIMM),
    build_timm,
    ROOT / "docs/models-timm.md",
    "Ten models of timm as it makes them, with random weights and a head of 3 classes, on images\n"
    "of 64 x 64 (of 224 x 224 where the name says so), rebuilt",
)


def compute(library: Library, file: Path, operations: float = OPERATIONS) -> None:
    """Compute what a file does not have: id_cond for all models, then he_normal."""
    done = read_rows(file)
    for features in FEATURES:
        for name in library.models:
            if features.name in done.get(name, {}):
                continue
            torch.manual_seed(0)
            entry = row(name, *library.build(name), features, operations)
            entry["version"] = importlib.metadata.version(library.name)
            done[name] = done.get(name, {}) | entry
            files.write_text(file, "".join(json.dumps(done[key]) + "\n" for key in done))
            told = entry[features.name]
            layers = f"{told['rebuilt']} of {told['layers']} layers"
            print(f"{name} {features.name}: {layers}, {told['seconds']:.0f} s", flush=True)


def _cells(told: dict) -> list[str]:
    """A reconstruction's cells: rebuilt layers, difference and seconds."""
    if not told["rebuilt"]:
        return ["0", "", ""]
    return [str(told["rebuilt"]), f"{told['difference']:.0e}", f"{told['seconds']:.0f}"]


def _alike(rows: dict[str, dict]) -> list[str]:
    """A sentence on models that are one network here, as their differences agree in all digits."""
    groups: dict[tuple, list[str]] = {}
    for name, entry in rows.items():
        told = [entry[each.name] for each in FEATURES]
        key = tuple(each[what] for each in told for what in ("layers", "difference"))
        groups.setdefault(key, []).append(name)
    alike = [", ".join(names) for names in groups.values() if names[1:]]
    return ["", f"Made small, these are one network each: {'; '.join(alike)}."] if alike else []


PAGE = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
LARGE = f"""\
Too large for this table is a layer of more than {LARGEST:,} weights; its statistics and
scales alone would take 48 bytes a weight.

"""
MADE_SMALL = """\
## How they were made small

| class | size | image |
|---|---|---:|
"""


def page(library: Library, rows: dict[str, dict]) -> str:
    """docs/models.md, or the page of another library."""
    rows, entries = dict(sorted(rows.items())), rows.values()
    versions = {f"torch {entry['torch']}, {library.name} {entry['version']}" for entry in entries}
    lines, reasons = [], {}
    for name, entry in rows.items():
        cells = [name, str(entry["id_cond"]["layers"])]
        cells += [cell for features in FEATURES for cell in _cells(entry[features.name])]
        lines.append(f"| {' | '.join(cells)} |")
        for reason, count in entry["id_cond"]["kept"].items():
            reasons.setdefault(reason, []).append(f"{name} ({count})")
    kinds = sorted({entry["class"] for entry in entries} & set(SMALLER))
    small = "".join(
        f"| {kind} | {SMALLER[kind].words} | {SMALLER[kind].side} x {SMALLER[kind].side} |\n"
        for kind in kinds
    )
    return PAGE.format(
        of_library="" if library is TORCHVISION else f" of {library.name}",
        words=library.words,
        option="" if library is TORCHVISION else f" --{library.name}",
        versions="; ".join(sorted(versions)),
        threads=max(entry["threads"] for entry in entries),
        largest=max(entry[each.name]["layer_error"] for entry in entries for each in FEATURES),
        lines="\n".join(lines + _alike(rows)),
        reasons="\n".join(
            f"| {why} | {', '.join(names)} |" for why, names in sorted(reasons.items())
        ),
        too_large=LARGE if TOO_LARGE in reasons else "",
        small=f"{MADE_SMALL}{small}\n" if library is TORCHVISION else "",
    )


def main() -> None:
    """Compute what is missing, or write the page."""
    args = command_line.parser(__doc__, timm=False, write=False).parse_args()
    torch.set_num_threads(1)
    library = TEN_OF_TIMM if args.timm else TORCHVISION
    file = ROOT / "outputs/models" / f"{library.name}.jsonl"
    if args.write:
        files.write_text(library.page, page(library, read_rows(file)))
    else:
        compute(library, file)


if __name__ == "__main__":
    main()
