"""The target of a run: taken from the store if it was trained before, trained under a lock if not."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from bnrecon import parallel, store
from bnrecon.config import VOLATILE, RunConfig, seconds
from bnrecon.data import Images
from bnrecon.errors import UserError
from bnrecon.evaluate import test_accuracy
from bnrecon.hardware import can_compile
from bnrecon.interruption import StopRequest
from bnrecon.targets import normalization_only  # noqa: F401 (registers its family)
from bnrecon.targets.models import build
from bnrecon.targets.reparameterization import reparameterize
from bnrecon.targets.training import TrainingPlan, autocast_dtype, train

__all__ = ["Trained", "build_target", "is_trained", "obtain_target", "target_folder", "training_plan"]


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
    alone = parallel.place()[1] == 1
    if t.compile == "on" and not alone:
        raise UserError("train.compile=on: only a process alone compiles; leave it at auto under torchrun")
    compiled = t.compile == "on" or (t.compile == "auto" and alone and can_compile(device))
    return TrainingPlan(
        t.epochs, t.lr, t.momentum, t.weight_decay, t.nesterov, t.batch_size, t.warmup_epochs, t.seed,
        autocast_dtype(t.precision, device), compiled,
    )  # fmt: skip


def target_folder(config: RunConfig, data: Images, device: torch.device) -> Path:
    """Where a target lies: named by what it is, how and in what arithmetic it is trained, and the pixels it is trained on."""
    content = {"pixels": data.checksum(), "device": device.type, "dtype": str(training_plan(config, device).dtype)}
    for part in ("target", "train"):  # of the precision, what came of it is in the content already
        content |= store.differences(getattr(config, part), VOLATILE | {"train.precision"}, part + ".")
    content |= {f"data.{name}": getattr(config.data, name) for name in ("crop_padding", "flip", "side")}
    return (
        Path(config.targets or f"{config.outputs}/targets")
        / f"{config.data.name}-{config.target.name}-{store.content_key(content)}"
    )


def is_trained(config: RunConfig, data: Images, device: torch.device) -> bool:
    """Whether the store has this target."""
    return (target_folder(config, data, device) / "target.json").exists()


def obtain_target(config: RunConfig, data: Images, device: torch.device) -> Trained:
    """Take the target from the store or train it; of several processes that need it, one trains and the others wait.

    A damaged file is named, set aside and redone. Of processes that train together (torchrun) the first holds the lock, tests and
    saves. Raises what ``train`` raises.
    """
    folder = target_folder(config, data, device)
    first = parallel.place()[0] == 0
    with store.exclusive(folder, f"training {config.target.name} ({folder})") if first else contextlib.nullcontext():
        network = build_target(config, data)
        if (found := parallel.after_first(lambda: _stored(folder, network))) is None:
            network = build_target(config, data)  # what was read so far of a damaged target must not be trained on
            found = _train(config, data, device, folder, network)
    return Trained(network.to(device).eval(), folder, found)


def _stored(folder: Path, network: nn.Module) -> dict | None:
    weights, description = folder / "target.safetensors", folder / "target.json"
    for path in (weights, description):
        if not path.exists():
            return None
        try:
            if path is weights:
                network.load_state_dict(store.read_tensors(weights)[0])
            else:
                return store.read_json(description)
        except (ValueError, RuntimeError) as error:
            store.set_aside(path, error)
            return None


def _train(config: RunConfig, data: Images, device: torch.device, folder: Path, network: nn.Module) -> dict:
    checkpoint = folder / "checkpoint.safetensors"
    plan = training_plan(config, device)
    limit = None if config.train.time_limit is None else seconds(config.train.time_limit)
    with StopRequest(limit) as stop:
        log, spent = train(network, data, plan, device, checkpoint, config.train.checkpoint_seconds, stop)
    return parallel.first_of(lambda: _keep(config, data, device, folder, network, log, spent))


def _keep(
    config: RunConfig, data: Images, device: torch.device, folder: Path, network: nn.Module, log: list[dict], spent: float
) -> dict:
    """Test a trained target and write it down."""
    accuracy = test_accuracy(network, data, device, description="testing the target")
    store.write_tensors(folder / "target.safetensors", network.state_dict(), {"target": config.target.name})
    described = {part: dataclasses.asdict(getattr(config, part)) for part in ("data", "target", "train")}
    del described["data"]["root"]  # where the files lie says nothing of the target
    about = {
        "accuracy": accuracy.percent, "images": accuracy.images, "seconds": spent, "log": log,
        "precision": str(training_plan(config, device).dtype).removeprefix("torch."), "device": device.type,
        "config": described,
        "data_checksum": data.checksum(), "processes": parallel.place()[1],
    }  # fmt: skip
    store.write_json(folder / "target.json", about)
    (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    return about
