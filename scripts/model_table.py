#!/usr/bin/env python3
"""Rebuild every classification model of torchvision, as a small copy with random weights.

    python scripts/model_table.py [--timm]           # compute what outputs/models lacks
    python scripts/model_table.py [--timm] --write   # write docs/models.md of it

Each model is rebuilt twice: from id_cond features, whose solution has a closed form, and from
he_normal features with 1.5 features per equation. The latter solve the smallest layers first, up to
6e10 operations (about ten seconds of a core). A finished model is a line of JSON in
outputs/models/torchvision.jsonl; existing models are not computed again. With ``--timm``, which has
to be installed, the models are ten of timm's, unchanged, the file is timm.jsonl and the page
docs/models-timm.md.

Weights are random, as none are downloaded; BatchNorm's statistics come from one batch in training
mode. The arguments of their classes make networks small. They run in float64, so that differences
of outputs are due to the reconstruction.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import itertools
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import command_line
import jinja2
import torch
from torch import nn
from torchvision import models

from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction import assemble, gather, plan_layers, solve_layer
from bnrecon.runtime import files

ROOT = Path(__file__).resolve().parents[1]
BATCH, CLASSES = 4, 3
FEATURES = (FeatureSpec("id_cond"), FeatureSpec("he_normal", oversampling=1.5))
TOO_LARGE = "too large for this table"
LARGEST = 3_000_000  # equations of a layer, above which its head is not rebuilt
OPERATIONS = 6e10  # limit for a model with he_normal features
ITERATIONS = 130  # of a solve with 1.5 features per equation
TIMM = (
    "resnet10t", "mobilenetv3_small_050", "efficientnet_lite0", "ghostnet_050", "lcnet_050",
    "vit_tiny_patch16_224", "mixer_s32_224", "convnext_atto", "edgenext_xx_small", "repvgg_a0",
)  # fmt: skip
# Sides of images by class; for other classes 32.
SIDES = {"AlexNet": 64, "Inception3": 80, "MaxVit": 64, "SqueezeNet": 64, "VisionTransformer": 16}


def small_resnet(make, block, layers, **options):
    """A ResNet with narrow bottlenecks; basic blocks have one width."""
    if block is models.resnet.Bottleneck:
        grouped = options.get("groups", 1) > 1
        options["width_per_group"] = 1 if grouped else options.get("width_per_group", 64) // 16
    return make(block, layers, **options)


def small_regnet(make, block, **options):
    """A RegNet with four widths of two or more groups of 8 channels."""
    block.widths = [16, 24, 32, 40][: len(block.widths)]
    block.group_widths = [8] * len(block.widths)
    return make(block, **options)


def channels(size: Callable[[int], int]):
    """Change the blocks' numbers of channels by a function."""

    def smaller(make, setting, *rest, **options):
        for block in setting:
            block.input_channels = size(block.input_channels)
            block.out_channels = block.out_channels and size(block.out_channels)
        if options.get("last_channel"):
            options["last_channel"] = size(options["last_channel"])
        return make(setting, *rest, **options)

    return smaller


def fixed(*changed, **more):
    """Replace the first arguments."""
    return lambda make, *rest, **options: make(*changed, *rest[len(changed) :], **options | more)


SMALLER = {  # by class, a call with torchvision's arguments; see ``build`` for MobileNetV3, VGG
    "ConvNeXt": channels(lambda count: count // 12),
    "DenseNet": lambda make, _, blocks, __, **options: make(4, blocks, 8, **options),
    "EfficientNet": channels(lambda count: max(8, round(count / 64) * 8)),
    "GoogLeNet": fixed(aux_logits=False, init_weights=False),
    "Inception3": fixed(aux_logits=False, init_weights=False),
    "MNASNet": fixed(0.1),
    "MaxVit": fixed(
        input_size=(64, 64),
        stem_channels=8,
        partition_size=2,
        block_channels=[8, 16, 24, 32],
        head_dim=4,
    ),
    "MobileNetV2": fixed(width_mult=0.1),
    "RegNet": small_regnet,
    "ResNet": small_resnet,
    "ShuffleNetV2": lambda make, repeats, _, **o: make(repeats, [8, 16, 32, 64, 64], **o),
    "SwinTransformer": fixed(
        patch_size=[2, 2], embed_dim=8, num_heads=[1, 1, 2, 2], window_size=[2, 2]
    ),
    "VisionTransformer": fixed(image_size=16, patch_size=8, num_heads=2, hidden_dim=8, mlp_dim=16),
}


def build(name: str) -> tuple[nn.Module, int]:
    """A small model of torchvision, and the side of its images."""
    builder = models.get_model_builder(name)
    module = sys.modules[builder.__module__]
    with contextlib.ExitStack() as stack:
        for kind, smaller in SMALLER.items():
            if isinstance(make := getattr(module, kind, None), type):
                call = functools.partial(smaller, make)
                stack.enter_context(mock.patch.object(module, kind, call))
        if hasattr(module, "cfgs"):  # VGG: a sixteenth of all channels except the last layer's
            sixteenths = {
                key: [*(v if v == "M" else v // 16 for v in plan[:-2]), *plan[-2:]]
                for key, plan in module.cfgs.items()
            }
            stack.enter_context(mock.patch.dict(module.cfgs, sixteenths))
        options = {"width_mult": 0.1} if name.startswith("mobilenet_v3") else {}
        model = builder(num_classes=CLASSES, **options)
    return model, SIDES.get(type(model).__name__, 32)


def build_timm(name: str) -> tuple[nn.Module, int]:
    """An unchanged model of timm, and the side of its images."""
    import timm

    return timm.create_model(name, num_classes=CLASSES), 224 if "224" in name else 64


class Library(NamedTuple):
    """A library of models, how to make one, and their page."""

    name: str
    models: Sequence[str]
    build: Callable[[str], tuple[nn.Module, int]]
    page: Path


TORCHVISION = Library("torchvision", models.list_models(models), build, ROOT / "docs/models.md")
TEN_OF_TIMM = Library("timm", TIMM, build_timm, ROOT / "docs/models-timm.md")


def enliven(model: nn.Module, images: torch.Tensor) -> nn.Module:
    """Draw parameters that start at or near zero, and normalize by the statistics of a batch."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(False)
        if float(parameter.abs().max()) < 1e-3 or "norm" in name.lower():
            nn.init.normal_(parameter, float(parameter.mean()), 0.1)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None  # a cumulative average, here of one batch
            nn.init.normal_(module.weight, 1, 0.2)
            nn.init.normal_(module.bias, 0, 0.2)
    with torch.no_grad():
        model.train()(images)
    return model.eval()


def rebuild(model: nn.Module, images: torch.Tensor, features: FeatureSpec, most: float) -> dict:
    """One reconstruction: rebuilt and kept layers, difference of the outputs, and duration."""
    started = time.perf_counter()
    plan = plan_layers(model, features, unsupported="keep", images=images)
    # Free memory differs by machine; layers that exceed it are too large here on any.
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
    moments = gather(chosen.model, [layer.folded for layer in layers], [images])
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


def read_rows(file: Path) -> dict[str, dict]:
    """The lines of a file by model."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return {entry["model"]: entry for entry in map(json.loads, lines)}


def compute(library: Library, file: Path, operations: float = OPERATIONS) -> None:
    """Compute what a file lacks: id_cond for all models, then he_normal."""
    done = read_rows(file)
    for features, name in itertools.product(FEATURES, library.models):
        if features.name in done.get(name, {}):
            continue
        torch.manual_seed(0)
        model, side = library.build(name)
        torch.manual_seed(0)
        images = torch.randn(BATCH, 3, side, side, dtype=torch.float64)
        told = rebuild(enliven(model.double(), images), images, features, operations)
        done[name] = done.get(name, {}) | {
            "model": name,
            "class": type(model).__name__,
            "side": side,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            features.name: told,
            "version": importlib.metadata.version(library.name),
        }
        files.write_text(file, "".join(json.dumps(done[key]) + "\n" for key in done))
        layers = f"{told['rebuilt']} of {told['layers']} layers"
        print(f"{name} {features.name}: {layers}, {told['seconds']:.0f} s", flush=True)


def page(library: Library, rows: dict[str, dict]) -> str:
    """The text of docs/models.md, or of another library's page."""
    rows, entries = dict(sorted(rows.items())), rows.values()
    reasons, same = defaultdict(list), defaultdict(list)
    for name, entry in rows.items():
        told = [entry[features.name] for features in FEATURES]
        same[tuple((each["layers"], each["difference"]) for each in told)].append(name)
        for reason, count in told[0]["kept"].items():
            reasons[reason].append(f"{name} ({count})")
    versions = {f"torch {entry['torch']}, {library.name} {entry['version']}" for entry in entries}
    text = Path(__file__).with_suffix(".md.jinja").read_text(encoding="utf-8")
    options = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    return jinja2.Template(text, undefined=jinja2.StrictUndefined, **options).render(
        library=library.name,
        rows=rows,
        versions=sorted(versions),
        largest=max(entry[each.name]["layer_error"] for entry in entries for each in FEATURES),
        alike=list(same.values()),  # equal in all digits
        reasons=dict(sorted(reasons.items())),
        most=LARGEST,
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
