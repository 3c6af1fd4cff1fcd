"""The store of trained targets: one is read if it was trained before, else trained under a lock."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bnrecon.data import Images
from bnrecon.runtime import distributed, files, locks, provenance
from bnrecon.runtime.digests import json_values, tensor_digest
from bnrecon.runtime.errors import Diverged, RunError, UserError
from bnrecon.runtime.interruption import StopRequest, parse_duration
from bnrecon.runtime.tracking import NO_TRACKERS, TrackedRun, Trackers
from bnrecon.runtime.user_code import attribute_errors
from bnrecon.targets.accuracy import measure_accuracy
from bnrecon.targets.building import build_target
from bnrecon.targets.given_weights import load_given
from bnrecon.targets.location import (
    ABOUT,
    CHECKPOINT,
    HOW,
    WEIGHTS,
    interrupted_elsewhere,
    is_trained,
    own_folder,
    target_folder,
    training_plan,
)
from bnrecon.targets.normalization import initialize_statistics
from bnrecon.targets.progress import log_epoch, log_training
from bnrecon.targets.register import FAMILIES, target_code
from bnrecon.targets.spec import INITIALIZED_FROM_DATA, TargetRequest
from bnrecon.targets.trainer import train

__all__ = ["Trained", "difference", "obtain_target"]

logger = logging.getLogger(__name__)

METADATA = frozenset({"accuracy", "images", "seconds", "log", "config"})


@dataclass(frozen=True)
class Trained:
    """A trained target in eval mode, its folder and its ``target.json``."""

    network: nn.Module
    folder: Path
    about: dict[str, Any]


def obtain_target(
    request: TargetRequest,
    data: Images,
    device: torch.device,
    trackers: Trackers = NO_TRACKERS,
) -> Trained:
    """Take the target from the store or train it; of several processes one trains, others wait.

    A stored target is only read, so that its folder need not be writable; which device and
    precision trained it does not matter (``target_folder``). A target that was just
    trained is read back: what is computed from it is the same, to the last digit, in every later
    run. A damaged file is named, set aside and redone. Of processes that train together (torchrun)
    the first holds the lock, tests and saves.

    Args:
        request: the target, how and on what it is trained, and where it is stored.
        data: the images.
        device: where to train, and where the network is afterwards.
        trackers: are sent the training, also one that was done before.

    Raises:
        UserError: where the request does not fit the images or the machine.
        RunError: where training diverges (Diverged), or the stored target cannot be read back.
        Interrupted: where training is stopped; it is saved before.
    """
    folder = target_folder(request, data, device)
    own = own_folder(request, data, device.type, training_plan(request, device).dtype)
    network, about = build_target(request, data), None
    read = functools.partial(_read_stored, request, data, folder, network)
    if distributed.run_on_first_rank(lambda: is_trained(request, data, device)):
        about = distributed.run_on_first_rank_before_others(read)
    if about is None:
        if request.target.weights is None:
            _check_batches(network, request, data)
        folder = own
        _say_what_is_left(request, data, device, own)
        network, about = _train_under_lock(request, data, device, folder, trackers)
    elif folder != own:
        trained_in = about.get("device", "another device"), about.get("precision", "its precision")
        logger.info("the stored target %s was trained on %s in %s", folder, *trained_in)
    with trackers.track(f"targets/{folder.name}", about["config"]) as tracked:
        log_training(tracked, about)
    return Trained(network.to(device).eval(), folder, about)


def _train_under_lock(
    request: TargetRequest, data: Images, device: torch.device, folder: Path, trackers: Trackers
) -> tuple[nn.Module, dict[str, Any]]:
    """Train, unless another process has done it in the meantime; then read what is stored."""
    lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if distributed.rank_and_world_size()[0] == 0:
        lock = locks.lock_folder(folder, f"training {request.target.name} ({folder})")
    with lock:
        network = build_target(request, data)
        about = distributed.run_on_first_rank_before_others(
            lambda: _read_stored(request, data, folder, network, set_aside=True)
        )
        if about is None:
            with trackers.track(f"targets/{folder.name}", _options(request)) as tracked:
                with attribute_errors(FAMILIES[request.target.family]):
                    _train_and_save(request, data, device, folder, tracked)
                network = build_target(request, data)
                about = distributed.run_on_first_rank_before_others(
                    lambda: _read_stored(request, data, folder, network)
                )
                if about is not None:
                    log_training(tracked, about)
    if about is None:
        raise RunError(f"{folder}: the trained target cannot be read back; check the disk")
    return network, about


def _say_what_is_left(
    request: TargetRequest, data: Images, device: torch.device, own: Path
) -> None:
    """Warn of an unfinished training that another device or precision would go on with."""
    if (own / CHECKPOINT).exists():
        return
    if (other := interrupted_elsewhere(request, data, device)) is not None:
        kind, precision = other[0], str(other[1]).removeprefix("torch.")
        logger.warning(
            "an unfinished training of %s on %s in %s is left as it is; to go on with it give "
            "device=%s train.precision=%s",
            *(request.target.name, kind, precision, kind, precision),
        )


def _check_batches(network: nn.Module, request: TargetRequest, data: Images) -> None:
    """Raise ``UserError`` for batches that are too small for the network's normalizations."""
    processes = distributed.rank_and_world_size()[1]
    batch = min(request.train.batch_size, data.sizes[0]) // processes
    virtual = request.target.virtual_batch
    if virtual is not None and virtual >= batch:
        raise UserError(
            f"target.virtual_batch={virtual:g}: must be below the {batch} images of a batch"
            + (" and process" if processes > 1 else "")
        )
    if batch > 1:
        return
    trial = copy.deepcopy(network).train()
    try:
        trial(torch.zeros(1, *data.shape))
    except ValueError as error:
        given = f"{data.sizes[0]} training image"
        if request.train.batch_size == 1:
            given = "train.batch_size=1"
        what = f"a batch of one image leaves {request.target.name} nothing to normalize over"
        raise UserError(f"{given}: {what} ({error})") from None


def _read_stored(
    request: TargetRequest, data: Images, folder: Path, network: nn.Module, set_aside: bool = False
) -> dict[str, Any] | None:
    """Read a stored target into ``network``; ``None`` where there is none, or it is damaged.

    With ``set_aside`` a damaged file is named and renamed; the folder's lock must be held.
    """
    path = folder / WEIGHTS
    try:
        weights = files.read_tensors(path)[0]
        network.load_state_dict(weights)
        path = folder / ABOUT
        about = files.read_json(path)
        if not set(about) >= METADATA:
            raise files.Damaged(f"{path} was written by another version of bnrecon")
        if about.get("weights", digest := tensor_digest(weights)) != digest:
            raise files.Damaged(f"{path} is of other weights than {WEIGHTS} beside it")
        if other := difference(about, request, data):
            raise files.Damaged(f"{path} is of another target, with {other}")
    except FileNotFoundError:
        if not (folder / ABOUT).exists():
            return None  # not trained yet, or stopped just before it was said
        reason: ValueError | str = f"{folder / ABOUT} is there without {WEIGHTS}"
    except (ValueError, RuntimeError) as error:
        reason = error if isinstance(error, ValueError) else f"{path} does not fit the network"
    else:
        with contextlib.suppress(OSError):  # left by a process that was killed at the very end
            (folder / CHECKPOINT).unlink(missing_ok=True)
        return about
    if set_aside:  # both: what is said of one set of weights must not stand beside another
        for name in (WEIGHTS, ABOUT):
            files.quarantine(folder / name, reason)
    else:
        logger.warning("%s; the target is trained again", reason)
    return None


def difference(about: Mapping[str, Any], request: TargetRequest, data: Images) -> str:
    """What tells a stored target from the one that is asked for, if anything does.

    Options that an earlier version did not have, or store, tell nothing.
    """
    options = json_values(_options(request))
    for group in ("target", "train") if request.target.weights is None else ("target",):
        stored = options[group] | about["config"][group]
        for name, asked in options[group].items():
            if stored[name] != asked and f"{group}.{name}" not in HOW:
                return f"{group}.{name}={stored[name]}, not {asked}"
    return "" if about.get("data_checksum") in (None, data.checksum()) else "other images"


def _train_and_save(
    request: TargetRequest, data: Images, device: torch.device, folder: Path, tracked: TrackedRun
) -> None:
    network = build_target(request, data)
    if request.target.weights is not None:
        load_given(network, request.target.weights)
        network, about = network.to(device), {"seconds": 0, "log": []}
    else:
        about = _train(network, request, data, device, folder, tracked)
    distributed.run_on_first_rank(
        lambda: _test_and_save(request, data, device, folder, network, about)
    )


def _train(
    network: nn.Module,
    request: TargetRequest,
    data: Images,
    device: torch.device,
    folder: Path,
    tracked: TrackedRun,
) -> dict[str, Any]:
    """Train a network, from its last checkpoint on; the seconds and the log."""
    plan = training_plan(request, device)
    limit = None if request.train.time_limit is None else parse_duration(request.train.time_limit)
    with StopRequest(limit) as stop:

        def initialize(network: nn.Module) -> None:
            initialize_statistics(network, request.target, data, device, stop)

        starts = initialize if request.target.initialization in INITIALIZED_FROM_DATA else None
        log_row = functools.partial(log_epoch, tracked)
        checkpoint = folder / CHECKPOINT
        log, spent = train(network, data, plan, device, checkpoint, stop, starts, log_row)
    return {"seconds": spent, "log": log}


def _options(request: TargetRequest) -> dict[str, Any]:
    """What the target is and how it is trained."""
    options = {
        "data": dataclasses.asdict(request.data),
        "target": dataclasses.asdict(request.target),
        "train": dataclasses.asdict(request.train),
    }
    del options["data"]["root"]  # where the files lie does not change the target
    if request.target.weights is not None:
        options["target"]["weights"] = Path(request.target.weights).name
    return options


def _test_and_save(
    request: TargetRequest,
    data: Images,
    device: torch.device,
    folder: Path,
    network: nn.Module,
    about: dict[str, Any],
) -> None:
    """Test a trained target and save it; one that diverged leaves nothing behind."""
    checkpoint = folder / CHECKPOINT
    try:
        accuracy = measure_accuracy(network, data, device, description="testing the target")
    except RunError as error:
        checkpoint.unlink(missing_ok=True)
        if (given := request.target.weights) is not None:
            raise UserError(f"target.weights={given}: {error}") from None
        advice = f"lower train.lr (now {request.train.lr:g}), nothing of it is kept"
        raise Diverged(f"training diverged: {error}; {advice}") from None
    files.write_tensors(folder / WEIGHTS, network.state_dict(), {"target": request.target.name})
    about = {"accuracy": accuracy.percent, "images": accuracy.images} | about
    about |= {
        "precision": str(training_plan(request, device).dtype).removeprefix("torch."),
        "device": device.type,
        "config": _options(request),
        "data_checksum": data.checksum(),
        "commit": provenance.commit(),
        "versions": provenance.versions(),
        "code": target_code(request.target.family),
        "processes": distributed.rank_and_world_size()[1],
        "weights": tensor_digest(network.state_dict()),
    }
    files.write_json(folder / ABOUT, about)
    checkpoint.unlink(missing_ok=True)
