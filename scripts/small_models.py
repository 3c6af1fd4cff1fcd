"""Torchvision's classification models, made small by the arguments of their classes."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from unittest import mock

from torch import nn
from torchvision import models

CLASSES = 3


def eighth(channels: int) -> int:
    """About an eighth of a number of channels, a multiple of 8."""
    return max(8, round(channels / 64) * 8)


def small_resnet(block, layers, **options):
    """Narrow bottlenecks; basic blocks have one width."""
    if block is models.resnet.Bottleneck:
        grouped = options.get("groups", 1) > 1
        options["width_per_group"] = 1 if grouped else options.get("width_per_group", 64) // 16
    return (block, layers), options


def small_regnet(block, **options):
    """Four widths of two groups of 8 channels and more."""
    block.widths = [16, 24, 32, 40][: len(block.widths)]
    block.group_widths = [8] * len(block.widths)
    return (block,), options


def small_efficientnet(setting, dropout, last_channel=None, **options):
    """An eighth of the channels."""
    for block in setting:
        block.input_channels = eighth(block.input_channels)
        block.out_channels = eighth(block.out_channels)
    return (setting, dropout), options | {"last_channel": last_channel and eighth(last_channel)}


def small_convnext(setting, **options):
    """A twelfth of the channels."""
    for block in setting:
        block.input_channels //= 12
        block.out_channels = block.out_channels and block.out_channels // 12
    return (setting,), options


def fixed(*changed, **more):
    """Arguments that replace the first ones."""
    return lambda *given, **options: ((*changed, *given[len(changed) :]), options | more)


@dataclasses.dataclass(frozen=True)
class Small:
    """How models of one class are made small: in words, their arguments, and an image's side."""

    words: str
    arguments: object = fixed()
    side: int = 32


SMALLER = {
    "AlexNet": Small("as it is", side=64),
    "ConvNeXt": Small("a twelfth of the channels", small_convnext),
    "DenseNet": Small(
        "growth_rate=4, num_init_features=8",
        lambda _, blocks, __, **options: ((4, blocks, 8), options),
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
        "channels 8 to 64", lambda repeats, _, **options: ((repeats, [8, 16, 32, 64, 64]), options)
    ),
    "SqueezeNet": Small("as it is", side=64),
    "SwinTransformer": Small(
        "embed_dim=8, windows of 2, patches of 2",
        fixed(patch_size=[2, 2], embed_dim=8, num_heads=[1, 1, 2, 2], window_size=[2, 2]),
    ),
    "VGG": Small("a sixteenth of the channels but the last"),  # by ``small_vggs``
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
            if isinstance(original := getattr(module, kind, None), type):

                def made(*given, original=original, small=small, **options):
                    arguments, options = small.arguments(*given, **options)
                    return original(*arguments, **options)

                stack.enter_context(mock.patch.object(module, kind, made))
        if hasattr(module, "cfgs"):
            stack.enter_context(mock.patch.dict(module.cfgs, small_vggs(module.cfgs)))
        options = {"width_mult": 0.1} if name.startswith("mobilenet_v3") else {}
        model = builder(num_classes=CLASSES, **options)
    return model, SMALLER[type(model).__name__]


def small_vggs(plans):
    """VGG's lists of channels, a sixteenth of each but the last."""
    return {
        key: [*(v if v == "M" else v // 16 for v in plan[:-2]), *plan[-2:]]
        for key, plan in plans.items()
    }
