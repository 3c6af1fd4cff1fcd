"""The target of a run: taken from the store if it was trained before, trained under a lock if not."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

import bnrecon.targets.collapsed_pair  # noqa: F401  it registers vgg_normalization
from bnrecon.data import Images
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.runtime import digests, distributed, files, locks
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.hardware import can_compile
from bnrecon.runtime.interruption import StopRequest, seconds
from bnrecon.runtime.own_code import blamed
from bnrecon.targets.accuracy import test_accuracy
from bnrecon.targets.models import FAMILIES, build, target_code
from bnrecon.targets.reparameterization import reparameterize
from bnrecon.targets.trainer import TrainingPlan, autocast_dtype, train

if TYPE_CHECKING:
    from bnrecon.config.schema import RunConfig

__all__ = [
    "Trained",
    "build_target",
    "is_trained",
    "obtain_target",
    "own_code",
    "target_folder",
    "training_plan",
]


# Options that say how a target is trained, and not what comes of it; of the precision, what it comes to is in the name already.
HOW = frozenset({"target.name", "train.time_limit", "train.checkpoint_seconds", "train.precision"})


@dataclass(frozen=True)
class Trained:
    """A trained target in eval mode, its folder and its ``target.json``."""

    network: nn.Module
    folder: Path
    about: dict


def build_target(config: RunConfig, data: Images) -> nn.Module:
    """Build the target untrained, its initial weights drawn from ``train.seed``."""
    options = {f.name: getattr(config.target, f.name) for f in dataclasses.fields(config.target)}
    del options["name"], options["family"]
    options |= options.pop("options", {})
    condition, density = options.pop("condition"), options.pop("density")
    with torch.random.fork_rng():
        torch.manual_seed(config.train.seed)
        network = build(config.target.family, data.shape, len(data.classes), **options)
    return reparameterize(network, condition, density, config.train.seed)


def training_plan(config: RunConfig, device: torch.device) -> TrainingPlan:
    """Resolve what ``train`` leaves to the machine."""
    t = config.train
    alone = distributed.place()[1] == 1
    if t.compile == "on" and not alone:
        raise UserError(
            "train.compile=on: only a process alone compiles; leave it at auto under torchrun"
        )
    compiled = t.compile == "on" or (t.compile == "auto" and alone and can_compile(device))
    return TrainingPlan(
        t.epochs,
        t.lr,
        t.momentum,
        t.weight_decay,
        t.nesterov,
        t.batch_size,
        t.warmup_epochs,
        t.seed,
        autocast_dtype(t.precision, device),
        compiled,
        compile_required=t.compile == "on",
    )


def target_folder(config: RunConfig, data: Images, device: torch.device) -> Path:
    """Where a target lies: named by what it is, how and in what arithmetic it is trained, and the pixels it is trained on."""
    content = {
        "pixels": data.checksum(),
        "device": device.type,
        "dtype": str(training_plan(config, device).dtype),
    }
    for part in ("target", "train"):  # of the precision, what came of it is in the content already
        content |= digests.differences(getattr(config, part), HOW, part + ".")
    content |= {
        f"data.{name}": getattr(config.data, name) for name in ("crop_padding", "flip", "side")
    }
    content |= own_code(config)
    return (
        Path(config.targets or f"{config.outputs}/targets")
        / f"{config.data.name}-{config.target.name}-{digests.content_key(content)}"
    )


def own_code(config: RunConfig) -> dict[str, str]:
    """Fingerprints of what a user has registered and a target is made of, by option: its family, its features."""
    options = vars(config.target) | getattr(config.target, "options", {})
    found = {"target.code": target_code(config.target.family)}
    if (features := str(options.get("features"))) in DISTRIBUTIONS:
        found["target.features.code"] = DISTRIBUTIONS[features].code
    return {name: code for name, code in found.items() if code is not None}


def is_trained(config: RunConfig, data: Images, device: torch.device) -> bool:
    """Whether the store has this target."""
    return (target_folder(config, data, device) / "target.json").exists()


def obtain_target(config: RunConfig, data: Images, device: torch.device) -> Trained:
    """Take the target from the store or train it; of several processes that need it, one trains and the others wait.

    A stored target is only read, so that its folder need not be writable; one that was just trained is read back, so that it is the
    same, to the last digit of what is computed from it, as in every later run. A damaged file is named, set aside and redone. Of
    processes that train together (torchrun) the first holds the lock, tests and saves. Raises what ``train`` raises.
    """
    folder = target_folder(config, data, device)
    network, found = build_target(config, data), None
    if distributed.first_of(lambda: is_trained(config, data, device)):
        found = distributed.after_first(lambda: _stored(folder, network))
    if found is None:
        check_batches(network, config, data)
        network, found = _trained_now(config, data, device, folder)
    return Trained(network.to(device).eval(), folder, found)


def _trained_now(
    config: RunConfig, data: Images, device: torch.device, folder: Path
) -> tuple[nn.Module, dict]:
    """Train under the folder's lock, unless another process has done it in the meantime; read what is stored then."""
    first = distributed.place()[0] == 0
    with (
        locks.exclusive(folder, f"training {config.target.name} ({folder})")
        if first
        else contextlib.nullcontext()
    ):
        network = build_target(config, data)
        found = distributed.after_first(lambda: _stored(folder, network, mend=True))
        if found is None:
            with blamed(FAMILIES[config.target.family]):
                _train(config, data, device, folder, build_target(config, data))
            network = build_target(config, data)
            found = distributed.after_first(lambda: _stored(folder, network))
    if found is None:
        raise RunError(f"{folder}: the trained target cannot be read back; is the disk sound?")
    return network, found


def check_batches(network: nn.Module, config: RunConfig, data: Images) -> None:
    """Raise ``UserError`` for a network that normalizes over a batch where a batch is one value a channel."""
    if min(config.train.batch_size, data.sizes[0]) > 1:
        return
    trial = copy.deepcopy(network).train()
    try:
        trial(torch.zeros(1, *data.shape))
    except ValueError as error:
        given = (
            "train.batch_size=1"
            if config.train.batch_size == 1
            else f"{data.sizes[0]} training image"
        )
        raise UserError(
            f"{given}: a batch of one image leaves {config.target.name} nothing to normalize over ({error})"
        ) from None


def _stored(folder: Path, network: nn.Module, mend: bool = False) -> dict | None:
    """Read a stored target into ``network``; ``None`` where there is none, or it is damaged. ``mend``: set a damaged file aside.

    With ``mend`` the folder's lock must be held.
    """
    path = folder / "target.safetensors"
    try:
        weights = files.read_tensors(path)[0]
        network.load_state_dict(weights)
        path = folder / "target.json"
        about = files.read_json(path)
        if not {"accuracy", "images", "seconds", "log", "config"} <= set(about):
            raise files.Damaged(f"{path} was written by another version of bnrecon")
    except FileNotFoundError:
        return None
    except (ValueError, RuntimeError) as error:
        if mend:
            reason = (
                error
                if isinstance(error, ValueError)
                else f"{path} does not fit the network that is asked for"
            )
            files.set_aside(path, reason)
        return None
    with contextlib.suppress(OSError):  # left by a process that was killed at the very end
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    return about


def _train(
    config: RunConfig, data: Images, device: torch.device, folder: Path, network: nn.Module
) -> dict:
    checkpoint = folder / "checkpoint.safetensors"
    plan = training_plan(config, device)
    limit = None if config.train.time_limit is None else seconds(config.train.time_limit)
    with StopRequest(limit) as stop:
        log, spent = train(
            network, data, plan, device, checkpoint, config.train.checkpoint_seconds, stop
        )
    return distributed.first_of(lambda: _keep(config, data, device, folder, network, log, spent))


def _keep(
    config: RunConfig,
    data: Images,
    device: torch.device,
    folder: Path,
    network: nn.Module,
    log: list[dict],
    spent: float,
) -> dict:
    """Test a trained target and write it down; one that diverged leaves nothing, so that the next attempt is a fresh one."""
    try:
        accuracy = test_accuracy(network, data, device, description="testing the target")
    except RunError as error:
        (folder / "checkpoint.safetensors").unlink(missing_ok=True)
        raise RunError(
            f"training diverged: {error}; lower train.lr (now {config.train.lr:g}), nothing of it is kept"
        ) from None
    files.write_tensors(
        folder / "target.safetensors", network.state_dict(), {"target": config.target.name}
    )
    described = {
        part: dataclasses.asdict(getattr(config, part)) for part in ("data", "target", "train")
    }
    del described["data"]["root"]  # where the files lie says nothing of the target
    about = {
        "accuracy": accuracy.percent,
        "images": accuracy.images,
        "seconds": spent,
        "log": log,
        "precision": str(training_plan(config, device).dtype).removeprefix("torch."),
        "device": device.type,
        "config": described,
        "data_checksum": data.checksum(),
        "code": target_code(config.target.family),
        "processes": distributed.place()[1],
    }
    files.write_json(folder / "target.json", about)
    (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    return about
