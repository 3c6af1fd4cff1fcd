"""The store of trained targets: read a target if it is trained, else train it under a lock."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
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
from bnrecon.runtime.hardware import exact_float32
from bnrecon.runtime.interruption import StopRequest, parse_duration
from bnrecon.runtime.tracking import NO_TRACKERS, TrackedRun, Trackers
from bnrecon.runtime.user_code import attribute_errors
from bnrecon.targets import location
from bnrecon.targets.accuracy import measure_accuracy
from bnrecon.targets.building import build_target
from bnrecon.targets.location import ABOUT, CHECKPOINT, VOLATILE, WEIGHTS
from bnrecon.targets.normalization import initialize_statistics
from bnrecon.targets.register import FAMILIES
from bnrecon.targets.spec import INITIALIZED_FROM_DATA, TargetRequest
from bnrecon.targets.trainer import train
from bnrecon.targets.weights_file import load_weights

logger = logging.getLogger(__name__)

METADATA = frozenset({"accuracy", "images", "seconds", "log", "config"})


@dataclass(frozen=True)
class Trained:
    """A trained target in eval mode, its folder and its ``target.json``."""

    network: nn.Module
    folder: Path
    about: dict[str, Any]


def obtain_target(
    request: TargetRequest, data: Images, device: torch.device, trackers: Trackers = NO_TRACKERS
) -> Trained:
    """Load the target from the store or train it; of several processes one trains, others wait.

    A stored target is only read, so that its folder need not be writable; any device and precision
    may have trained it (``target_folder``). A newly trained target is read back, so that results
    computed from it agree to the last digit with those of later runs. A damaged file is reported,
    set aside and replaced. Of processes that train together (torchrun), the first holds the lock,
    tests and saves. Trackers get the training, even if it was done earlier.

    Raises:
        UserError: the request does not fit the images or the machine.
        RunError: training diverges (Diverged), or the stored target cannot be read back.
        Interrupted: training is stopped, after saving.
    """
    folder = location.target_folder(request, data, device)
    dtype = location.training_plan(request, device).dtype
    training_folder = location.device_folder(request, data, device.type, dtype)
    job, metadata = _TrainingJob(request, data, device, training_folder), None
    network = job.build()
    if distributed.run_on_first_rank(lambda: location.is_trained(request, data, device)):
        metadata = distributed.run_on_first_rank_before_others(lambda: job.read(folder, network))
    if metadata is None:
        if request.target.weights is None:
            job.check_batches(network)
        folder = training_folder
        network, metadata = job.train_under_lock(trackers)
    elif folder != training_folder:
        where = metadata.get("device", "another device"), metadata.get("precision", "its precision")
        logger.info("the stored target %s was trained on %s in %s", folder, *where)
    with trackers.track(f"targets/{folder.name}", metadata["config"]) as tracked:
        tracked.log_training(metadata)
    return Trained(network.to(device).eval(), folder, metadata)


@dataclass(frozen=True)
class _TrainingJob:
    """A requested target, and its folder if it is trained here."""

    request: TargetRequest
    data: Images
    device: torch.device
    folder: Path

    def build(self) -> nn.Module:
        return build_target(self.request, self.data)

    def train_under_lock(self, trackers: Trackers) -> tuple[nn.Module, dict[str, Any]]:
        """Train, unless another process has done so meanwhile, and read the stored target."""
        folder, target = self.folder, self.request.target
        lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        if distributed.rank_and_world_size()[0] == 0:
            lock = locks.lock_folder(folder, f"training {target.name} ({folder})")
        with lock:
            network = self.build()
            metadata = distributed.run_on_first_rank_before_others(
                lambda: self.read(folder, network, set_aside=True)
            )
            if metadata is None:
                with trackers.track(f"targets/{folder.name}", _options(self.request)) as tracked:
                    with attribute_errors(FAMILIES[target.family]):
                        self._train_and_save(tracked)
                    network = self.build()
                    metadata = distributed.run_on_first_rank_before_others(
                        lambda: self.read(folder, network)
                    )
                    if metadata is not None:
                        tracked.log_training(metadata)
        if metadata is None:
            raise RunError(f"{folder}: the trained target cannot be read back; check the disk")
        return network, metadata

    def check_batches(self, network: nn.Module) -> None:
        """Raise ``UserError`` for batches too small for the network's normalizations."""
        processes = distributed.rank_and_world_size()[1]
        images, batch_size = self.data.sizes[0], self.request.train.batch_size
        batch, target = min(batch_size, images) // processes, self.request.target
        if target.virtual_batch is not None and target.virtual_batch >= batch:
            raise UserError(
                f"target.virtual_batch={target.virtual_batch:g}: must be below the {batch} images "
                "of a batch" + (" and process" if processes > 1 else "")
            )
        if batch > 1:
            return
        trial = copy.deepcopy(network).train()
        try:
            trial(torch.zeros(1, *self.data.shape))
        except ValueError as error:
            cause = "train.batch_size=1" if batch_size == 1 else f"{images} training image"
            what = f"a batch of one image leaves {target.name} nothing to normalize over"
            raise UserError(f"{cause}: {what} ({error})") from None

    def read(
        self, folder: Path, network: nn.Module, set_aside: bool = False
    ) -> dict[str, Any] | None:
        """Read a stored target into ``network``; ``None`` if there is none, or it is damaged.

        With ``set_aside`` a damaged file is reported and renamed; the folder's lock must be held.
        """
        try:
            weights, metadata = read_stored(folder)
            network.load_state_dict(weights)
            if other := difference(metadata, self.request, self.data):
                raise files.Damaged(f"{folder / ABOUT} is of another target, with {other}")
        except FileNotFoundError:
            lone, missing = (WEIGHTS, ABOUT) if (folder / WEIGHTS).exists() else (ABOUT, WEIGHTS)
            stopped = lone == WEIGHTS and (folder / CHECKPOINT).exists()  # just before the end
            if stopped or not (folder / lone).exists():
                return None
            reason: ValueError | str = f"{folder / lone} is there without {missing}"
        except (ValueError, RuntimeError, LookupError, TypeError) as error:
            misfit = f"{folder}: {WEIGHTS} does not fit the network, or {ABOUT} is not as expected"
            reason = error if isinstance(error, ValueError) else misfit
        else:
            with contextlib.suppress(OSError):  # of a process killed at the very end
                (folder / CHECKPOINT).unlink(missing_ok=True)
            return metadata
        if set_aside:  # both: metadata must not stay next to other weights
            for name in (WEIGHTS, ABOUT):
                files.quarantine(folder / name, reason)
        else:
            logger.warning("%s; the target is trained again", reason)
        return None

    def _train_and_save(self, tracked: TrackedRun) -> None:
        network = self.build()
        if self.request.target.weights is not None:
            load_weights(network, self.request.target.weights)
            network, trained = network.to(self.device), {"seconds": 0, "log": [], "processes": 1}
        else:
            self._check_stored(network)  # constants; statistics differ after the training only
            trained = self._train(network, tracked)
        distributed.run_on_first_rank(lambda: self._test_and_save(network, trained))

    def _train(self, network: nn.Module, tracked: TrackedRun) -> dict[str, Any]:
        """Train a network from its last checkpoint; return the log, seconds and processes."""
        target, limit = self.request.target, self.request.train.time_limit
        with StopRequest(None if limit is None else parse_duration(limit)) as stop:

            def initialize(network: nn.Module) -> None:
                initialize_statistics(network, target, self.data, self.device, stop)

            log, took = train(
                network,
                self.data,
                location.training_plan(self.request, self.device),
                self.device,
                self.folder / CHECKPOINT,
                stop,
                initialize if target.initialization in INITIALIZED_FROM_DATA else None,
                tracked.log_epoch,
            )
        return {"log": log} | took

    def _test_and_save(self, network: nn.Module, trained: dict[str, Any]) -> None:
        """Test a trained target and save it; one that diverged is not saved."""
        request, checkpoint = self.request, self.folder / CHECKPOINT
        try:
            accuracy = measure_accuracy(network, self.data, self.device, "testing the target")
        except RunError as error:
            checkpoint.unlink(missing_ok=True)
            if request.target.weights is not None:
                raise UserError(f"target.weights={request.target.weights}: {error}") from None
            advice = f"lower train.lr (now {request.train.lr:g}), nothing was saved"
            raise Diverged(f"training diverged: {error}; {advice}") from None
        self._check_stored(network)
        name = {"target": request.target.name}
        files.write_tensors(self.folder / WEIGHTS, network.state_dict(), name)
        metadata = {"accuracy": accuracy, "images": self.data.sizes[1]} | trained
        precision = location.training_plan(request, self.device).dtype
        metadata |= {
            "precision": str(precision).removeprefix("torch."),
            "device": self.device.type,
            "config": _options(request),
            "data_checksum": self.data.checksum(),
            "commit": provenance.commit(),
            "versions": provenance.versions(),
            "code": FAMILIES[request.target.family].fingerprint,
            "weights": tensor_digest(network.state_dict()),
        }
        files.write_json(self.folder / ABOUT, metadata)
        checkpoint.unlink(missing_ok=True)

    def _check_stored(self, network: nn.Module) -> None:
        """Refuse a user's network whose stored tensors do not determine its outputs."""
        registered = FAMILIES[self.request.target.family]
        if not registered.user_defined:
            return
        again = self.build().eval()
        again.load_state_dict(network.state_dict())
        again = again.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = next(iter(self.data.test_batches(64, self.device)))[0]
        with attribute_errors(registered), torch.inference_mode(), exact_float32():
            first, second = (one(images.clone()) for one in (network.to(self.device).eval(), again))
        close = {"rtol": 1e-3, "atol": 1e-3 * float(first.abs().nan_to_num().max())}
        if not torch.allclose(first, second, **close, equal_nan=True):  # it may overflow untrained
            raise UserError(
                f"{registered.what}: built again with the same weights, it computes something "
                "else; keep statistics and constants in buffers (register_buffer), and no random "
                "layers in eval mode"
            )


def read_stored(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The weights and the metadata of a stored target.

    Raises:
        Damaged: a file is damaged, or one does not belong to the other.
        FileNotFoundError: one is missing.
    """
    weights, path = files.read_tensors(folder / WEIGHTS)[0], folder / ABOUT
    metadata = files.read_json(path)
    if not set(metadata) >= METADATA:
        raise files.Damaged(f"{path} was written by another version of bnrecon")
    if metadata.get("weights", digest := tensor_digest(weights)) != digest:
        raise files.Damaged(f"{path} does not belong to {WEIGHTS} next to it")
    return weights, metadata


def difference(about: Mapping[str, Any], request: TargetRequest, data: Images) -> str:
    """The difference between a stored target and the requested one, if any.

    Options that an earlier version lacked, or did not store, are ignored.
    """
    options = json_values(_options(request))
    for group in ("target", "train") if request.target.weights is None else ("target",):
        stored = options[group] | about["config"][group]
        for name, asked in options[group].items():
            if stored[name] != asked and f"{group}.{name}" not in VOLATILE:
                return f"{group}.{name}={stored[name]}, not {asked}"
    return "" if about.get("data_checksum") in (None, data.checksum()) else "other images"


def _options(request: TargetRequest) -> dict[str, Any]:
    options = {
        "data": dataclasses.asdict(request.data),
        "target": dataclasses.asdict(request.target),
        "train": dataclasses.asdict(request.train),
    }
    del options["data"]["root"]  # the location of the files does not change the target
    if request.target.weights is not None:
        options["target"]["weights"] = Path(request.target.weights).name
    return options
