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

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import operator
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import command_line
import torch
from torch import nn
from torchvision import models

from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction import assemble, gather, plan_layers, solve_layer
from bnrecon.runtime import files

ROOT = Path(__file__).resolve().parents[1]
BATCH, CLASSES = 4, 3
TOO_LARGE = "too large for this table"
LARGEST = 3_000_000  # equations of a layer, above which its head is left as it is
OPERATIONS = 6e10  # that are spent on a model with he_normal features
ITERATIONS = 130  # of a solve with 1.5 features per equation
TIMM = (
    "resnet10t", "mobilenetv3_small_050", "efficientnet_lite0", "ghostnet_050", "lcnet_050",
    "vit_tiny_patch16_224", "mixer_s32_224", "convnext_atto", "edgenext_xx_small", "repvgg_a0",
)  # fmt: skip


def eighth(channels: int) -> int:
    """About an eighth of a number of channels, a multiple of 8."""
    return max(8, round(channels / 64) * 8)


def small_resnet(make, block, layers, **options):
    """Narrow bottlenecks; basic blocks have one width."""
    if block is models.resnet.Bottleneck:
        grouped = options.get("groups", 1) > 1
        options["width_per_group"] = 1 if grouped else options.get("width_per_group", 64) // 16
    return make(block, layers, **options)


def small_regnet(make, block, **options):
    """Four widths of two groups of 8 channels and more."""
    block.widths = [16, 24, 32, 40][: len(block.widths)]
    block.group_widths = [8] * len(block.widths)
    return make(block, **options)


def small_efficientnet(make, setting, dropout, last_channel=None, **options):
    """An eighth of the channels."""
    for block in setting:
        block.input_channels = eighth(block.input_channels)
        block.out_channels = eighth(block.out_channels)
    return make(setting, dropout, last_channel=last_channel and eighth(last_channel), **options)


def small_convnext(make, setting, **options):
    """A twelfth of the channels."""
    for block in setting:
        block.input_channels //= 12
        block.out_channels = block.out_channels and block.out_channels // 12
    return make(setting, **options)


def fixed(*changed, **more):
    """Arguments that replace the first ones."""
    return lambda make, *given, **options: make(*changed, *given[len(changed) :], **options | more)


@dataclasses.dataclass(frozen=True)
class Small:
    """How models of one class are made small: in words, by a call, and an image's side."""

    words: str
    call: Callable[..., nn.Module] = operator.call
    side: int = 32


SMALLER = {
    "AlexNet": Small("as it is", side=64),
    "ConvNeXt": Small("a twelfth of the channels", small_convnext),
    "DenseNet": Small(
        "growth_rate=4, num_init_features=8",
        lambda make, _, blocks, __, **options: make(4, blocks, 8, **options),
    ),
    "EfficientNet": Small("about an eighth of the channels", small_efficientnet),
    "GoogLeNet": Small("aux_logits=False", fixed(aux_logits=False, init_weights=False)),
    "Inception3": Small("aux_logits=False", fixed(aux_logits=False, init_weights=False), 80),
    "MNASNet": Small("alpha=0.1", fixed(0.1)),
    "MaxVit": Small(
        "channels 8 to 32, partitions of 2",
        fixed(
            input_size=(64, 64),
            stem_channels=8,
            partition_size=2,
            block_channels=[8, 16, 24, 32],
            head_dim=4,
        ),
        64,
    ),
    "MobileNetV2": Small("width_mult=0.1", fixed(width_mult=0.1)),
    "MobileNetV3": Small("width_mult=0.1"),
    "RegNet": Small("widths 16 to 40, groups of 8", small_regnet),
    "ResNet": Small(
        "bottlenecks a sixteenth as wide, or groups of few channels; basic blocks as they are",
        small_resnet,
    ),
    "ShuffleNetV2": Small(
        "channels 8 to 64",
        lambda make, repeats, _, **options: make(repeats, [8, 16, 32, 64, 64], **options),
    ),
    "SqueezeNet": Small("as it is", side=64),
    "SwinTransformer": Small(
        "embed_dim=8, windows of 2, patches of 2",
        fixed(patch_size=[2, 2], embed_dim=8, num_heads=[1, 1, 2, 2], window_size=[2, 2]),
    ),
    "VGG": Small("a sixteenth of the channels but the last"),
    "VisionTransformer": Small(
        "hidden_dim=8, mlp_dim=16, 2 heads, patches of 8",
        fixed(image_size=16, patch_size=8, num_heads=2, hidden_dim=8, mlp_dim=16),
        16,
    ),
}


def build(name: str) -> tuple[nn.Module, Small]:
    """A model of torchvision, made small."""
    builder = models.get_model_builder(name)
    module = sys.modules[builder.__module__]
    with contextlib.ExitStack() as stack:
        for kind, small in SMALLER.items():
            if isinstance(make := getattr(module, kind, None), type):
                smaller = functools.partial(small.call, make)
                stack.enter_context(mock.patch.object(module, kind, smaller))
        if hasattr(module, "cfgs"):  # VGG's, a sixteenth of the channels of each layer but the last
            sixteenths = {
                key: [*(v if v == "M" else v // 16 for v in plan[:-2]), *plan[-2:]]
                for key, plan in module.cfgs.items()
            }
            stack.enter_context(mock.patch.dict(module.cfgs, sixteenths))
        options = {"width_mult": 0.1} if name.startswith("mobilenet_v3") else {}
        model = builder(num_classes=CLASSES, **options)
    return model, SMALLER[type(model).__name__]


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
    lines, reasons, same = [], defaultdict(list), defaultdict(list)
    for name, entry in rows.items():
        told = [entry[features.name] for features in FEATURES]
        cells = [name, str(told[0]["layers"])]
        for each in told:
            shown = (each["rebuilt"], f"{each['difference']:.0e}", f"{each['seconds']:.0f}")
            cells += map(str, shown if each["rebuilt"] else (0, "", ""))
        lines.append(f"| {' | '.join(cells)} |")
        same[tuple((each["layers"], each["difference"]) for each in told)].append(name)
        for reason, count in told[0]["kept"].items():
            reasons[reason].append(f"{name} ({count})")
    # Their differences agree in all digits.
    if alike := "; ".join(", ".join(names) for names in same.values() if names[1:]):
        lines += ["", f"Made small, these are one network each: {alike}."]
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
        lines="\n".join(lines),
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
