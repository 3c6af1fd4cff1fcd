"""The folder of a trained target, whose name is a hash of everything it depends on."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import torch

from bnrecon.data import Images
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.runtime import digests, distributed
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.hardware import can_compile, has_fast_bfloat16
from bnrecon.targets.register import FAMILIES
from bnrecon.targets.spec import TargetRequest
from bnrecon.targets.step import TrainingPlan
from bnrecon.targets.weights_file import weights_digest

# Options that change how a target is trained, not the result; ``config.schema`` has those of runs.
VOLATILE = frozenset(
    {
        *("target.name", "train.time_limit", "train.checkpoint_seconds"),
        "target.weights",  # the content counts
        "train.precision",  # the name has its resolved value
    }
)
CHECKPOINT = "checkpoint.safetensors"
WEIGHTS = "target.safetensors"
ABOUT = "target.json"
DEVICES = ("cpu", "cuda")  # device types that may have trained a target
DTYPES = (torch.float32, torch.bfloat16)


def training_plan(request: TargetRequest, device: torch.device) -> TrainingPlan:
    """Resolve the options of ``train`` that depend on the machine: precision and compilation."""
    spec = request.train
    alone = distributed.rank_and_world_size()[1] == 1
    if spec.compile == "on" and not alone:
        raise UserError(
            "train.compile=on: is for one process; leave it at auto with several (torchrun)"
        )
    compiled = spec.compile == "on" or (spec.compile == "auto" and alone and can_compile(device))
    return TrainingPlan(spec, autocast_dtype(spec.precision, device), compiled)


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Resolve ``auto`` (bfloat16 if the device has units for it), ``float32``, ``bfloat16``."""
    fast = precision == "bfloat16" or (precision == "auto" and has_fast_bfloat16(device))
    return torch.bfloat16 if fast else torch.float32


def target_folder(request: TargetRequest, data: Images, device: torch.device) -> Path:
    """The folder of a target, trained or not.

    The name has a hash of the network, its training, device type and precision, of a user's code,
    and of the training pixels. If this device type and precision have neither target nor
    checkpoint, a target of another device type is used, or, with ``train.precision=auto``, of
    another precision: ``target.json`` says which.
    """
    dtype = training_plan(request, device).dtype
    folder = device_folder(request, data, device.type, dtype)
    if any((folder / name).exists() for name in (ABOUT, CHECKPOINT)):
        return folder
    dtypes = DTYPES if request.train.precision == "auto" else (dtype,)
    others = (device_folder(request, data, *kind) for kind in itertools.product(DEVICES, dtypes))
    return next(filter(_is_whole, others), folder)


def _is_whole(folder: Path) -> bool:
    return all((folder / name).exists() for name in (WEIGHTS, ABOUT))


def device_folder(request: TargetRequest, data: Images, device: str, dtype: torch.dtype) -> Path:
    """The folder of a target that this device type trains in this precision."""
    spec = request.data
    content: dict[str, Any] = {"pixels": data.checksum(), "device": device, "dtype": str(dtype)}
    content |= digests.differences_from_defaults(request.target, VOLATILE, "target.")
    if request.target.weights is None:
        content |= digests.differences_from_defaults(request.train, VOLATILE, "train.")
    content |= {f"data.{name}": getattr(spec, name) for name in ("crop_padding", "flip", "side")}
    content |= user_code(request)
    if request.target.initialization == "random_bias":  # formerly drawn from the weights' stream
        content["target.biases"] = "a stream of their own"
    key = digests.content_key(content)
    return request.store / f"{spec.name}-{request.target.name}-{key}"


def user_code(request: TargetRequest) -> dict[str, str]:
    """What the target depends on that is the user's, by option.

    These are fingerprints of code (its family, features) and of weights from a file.
    """
    target = request.target
    options = vars(target) | getattr(target, "options", {})
    codes = {"target.code": FAMILIES[target.family].fingerprint}
    if (features := str(options.get("features"))) in DISTRIBUTIONS:
        codes["target.features.code"] = DISTRIBUTIONS[features].registered.fingerprint
    if target.weights is not None:
        codes["target.weights"] = weights_digest(target.weights)
    return {name: code for name, code in codes.items() if code is not None}


def is_trained(request: TargetRequest, data: Images, device: torch.device) -> bool:
    """Whether the store has this target."""
    return _is_whole(target_folder(request, data, device))
