"""The main job: take or train a target, reconstruct it from frozen random features, evaluate it."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from bnrecon.config.checks import check_machine
from bnrecon.config.composition import option_names
from bnrecon.config.schema import RunConfig
from bnrecon.data import Images, load
from bnrecon.data.loading import refuse_unused_root
from bnrecon.features.register import distribution
from bnrecon.reconstruction.moments import gather
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.reporting.result import (
    DataSummary,
    Evaluation,
    RunResult,
    SeedRecord,
    TargetSummary,
)
from bnrecon.reporting.run_tables import run_text, table_files
from bnrecon.reporting.trackers.events import log_run, tracked_options
from bnrecon.reporting.trackers.registry import open_trackers
from bnrecon.run import finished as finished_run
from bnrecon.run.announcement import announce
from bnrecon.run.naming import USER_IMAGES, run_folder
from bnrecon.run.seed import read_seed, run_seed, seed_key
from bnrecon.runtime import distributed, files, hardware, locks
from bnrecon.runtime.digests import json_values, tensor_digest
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.provenance import command, commit, host, now, versions
from bnrecon.runtime.tracking import NO_TRACKERS, TrackedRun, Trackers
from bnrecon.solvers.register import lookup
from bnrecon.targets.location import is_trained
from bnrecon.targets.models import minimum_width_count, parameter_count
from bnrecon.targets.register import check_family
from bnrecon.targets.reparameterization import trained_parameters
from bnrecon.targets.store import Trained, obtain_target

__all__ = ["Run", "TrainedTarget", "check_names", "run", "train_only"]

logger = logging.getLogger(__name__)

STATISTICS_IMAGES = 1024  # training images that running statistics are taken from


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its result, and what its user should know."""

    folder: Path
    result: RunResult
    notes: list[str]

    def text(self) -> str:
        """What ``bnrecon run`` prints: notes, tables, and in the last line the folder."""
        return "\n\n".join([*self.notes, run_text(self.result), str(self.folder)])


@dataclass(frozen=True)
class TrainedTarget:
    """A target that was trained alone; ``stored`` where it had been trained before."""

    trained: Trained
    name: str
    width: int
    stored: bool
    rank: int

    def text(self) -> str:
        """What ``bnrecon train`` prints; nothing from any but the first of several processes."""
        if self.rank > 0:
            return ""
        about = self.trained.about
        parameters = trained_parameters(self.trained.network)
        processes = about.get("processes", 1)
        return (
            f"{self.name} of width {self.width}: {_tested(self.trained)} accuracy "
            f"{about['accuracy']:.2f}% "
            f"(n={about['images']}), {parameters:,} trainable parameters, "
            f"{'trained before in' if self.stored else 'trained in'} {about['seconds']:.0f} s"
            f"{f' by {processes} processes' if processes > 1 else ''}\n{self.trained.folder}"
        )


def run(config: RunConfig) -> Run:
    """Do the main job. A run that has a result is not run again.

    Raises:
        UserError: the request cannot be met.
        RunError: it failed.
        Interrupted: it was stopped. Whatever was finished by then is on disk and will be used.
    """
    distributed.refuse_torchrun("bnrecon run")
    commit()
    check_names(config)
    _check_root(config)
    with hardware.use_threads(config.threads):
        return _read_or_compute(config)


def train_only(config: RunConfig) -> TrainedTarget:
    """Train the target of a run, or take the trained one; alone, or with others under torchrun.

    Raises what ``obtain_target`` raises.
    """
    check_names(config)
    check_machine(config)
    _check_root(config)
    device, request = hardware.resolve_device(config.device), config.target_request
    with hardware.use_threads(config.threads), distributed.join_processes(device):
        data = distributed.run_on_first_rank_before_others(lambda: _load(config))
        stored = is_trained(request, data, device)
        rank = distributed.rank_and_world_size()[0]
        trackers = _announced_trackers(config) if rank == 0 else NO_TRACKERS
        trained = obtain_target(request, data, device, trackers)
    return TrainedTarget(trained, config.target.name, config.target.width, stored, rank)


def check_names(config: RunConfig) -> None:
    """Raise ``UserError`` for names that are not registered, before any data are read."""
    distribution(config.features.name)
    if config.solver.name != "auto":
        lookup(config.solver.name)
    with option_names("target"):
        check_family(config.target.family)


def _check_root(config: RunConfig) -> None:
    with option_names("data"):
        refuse_unused_root(config.data)


def _announced_trackers(config: RunConfig) -> Trackers:
    trackers = open_trackers(config)
    for view in trackers.views:
        logger.info("tracker   %s", view)
    return trackers


def _tested(trained: Trained) -> str:
    """What a target's accuracy is measured on: the test images, or held-out training images."""
    held_out = trained.about["config"]["data"].get("validation") is not None
    return "held-out" if held_out else "test"


def _load(config: RunConfig) -> Images:
    with option_names("data"):
        return load(config.data)


def _read_or_compute(config: RunConfig) -> Run:
    data = _load(config) if config.data.name in USER_IMAGES else None
    folder = run_folder(config, data)
    result, notes = finished_run.read_result(folder, config), []
    known = result is not None
    if result is None:
        check_machine(config)
        data = data or _load(config)  # before anything is written
        with locks.lock_folder(folder, f"the run {folder.name}"):
            # Another process may have done it while this one waited.
            result = finished_run.read_result(folder, config, quarantine_damaged=True)
            known = result is not None
            if result is None:
                result = _compute(config, folder, data)
    if known:
        trackers = _announced_trackers(config)
        with trackers.track(f"runs/{folder.name}", tracked_options(config)) as tracked:
            log_run(tracked, result)
        notes = finished_run.check_images(config, result, folder, data)
        notes.insert(0, f"already done; nothing to do (remove {folder} to run it again)")
        notes += finished_run.source_notes(result, folder) if config.keep_source else []
        if config.device != "auto" and not result.device.startswith(
            config.device.partition(":")[0]
        ):
            notes.append(f"note      computed on {result.device}, before device={config.device}")
    finished_run.restore_tables(config, folder, result)
    return Run(folder, result, notes)


def _compute(config: RunConfig, folder: Path, data: Images) -> RunResult:
    """Do the run; ``result.json`` is written last and makes it count."""
    device = hardware.resolve_device(config.device)
    if len(data.classes) < 2:
        raise UserError(
            f"data={config.data.name}: all images are of one class, {data.classes[0]}; "
            "a run compares predictions, and needs two classes or more"
        )
    storage = announce(config, data, device).storage
    finished_run.write_config(config, folder)
    trackers = _announced_trackers(config)
    trained = obtain_target(config.target_request, data, device, trackers)
    logger.info(
        "target    %s accuracy %.2f%% (n=%d), %s",
        _tested(trained),
        trained.about["accuracy"],
        trained.about["images"],
        trained.folder,
    )
    with trackers.track(f"runs/{folder.name}", tracked_options(config)) as tracked:
        result = _rebuild(config, storage, folder, data, device, trained, tracked)
        log_run(tracked, result)
    return result


def _rebuild(
    config: RunConfig,
    storage: str,
    folder: Path,
    data: Images,
    device: torch.device,
    trained: Trained,
    tracked: TrackedRun,
) -> RunResult:
    """Rebuild the target from each seed, features where they were announced; write the result."""
    features = dataclasses.replace(config.features, storage=storage)
    with option_names("features"):
        try:
            plan = plan_layers(trained.network, features, config.solver)
        except (UserError, RunError):
            if config.features.storage == storage:
                raise
            plan = plan_layers(trained.network, config.features, config.solver)
            logger.warning("less memory is free than before: features.storage=%s", plan.storage)
            features = dataclasses.replace(features, storage=plan.storage)
    announced = dataclasses.replace(config, features=features)
    images = data.plain_train_batches(64, device, STATISTICS_IMAGES)
    moments = gather(plan.model, [layer.found for layer in plan.layers], images)
    del plan  # each seed makes its own; it holds the weights in float64
    records = [
        run_seed(announced, seed, folder, trained, moments, data, device, tracked)
        for seed in config.seeds
    ]
    result = _result(config, data, device, trained, records)
    for name, text in table_files(result).items():
        files.write_text(folder / name, text)
    finished_run.draw_layers(folder, result)
    key = seed_key(config, trained, data, device)
    for seed in config.seeds:
        place = folder / f"seed-{seed}"
        if read_seed(place, key, config.keep_source) is None:
            raise RunError(
                f"{place}: its files were removed or changed during the run; rerun the command"
            )
    result.write(folder / "result.json")
    if not config.keep_source:
        for file in folder.glob("seed-*/source.safetensors"):
            file.unlink()
    return RunResult.read(folder / "result.json")


def _result(
    config: RunConfig,
    data: Images,
    device: torch.device,
    trained: Trained,
    records: list[SeedRecord],
) -> RunResult:
    """The run's result of its seeds' records; their evaluations are summarized by the worst."""
    everything = all(record.source_images == record.images for record in records)
    first = records[0]
    return RunResult(
        config=json_values(dataclasses.asdict(config)),
        data=DataSummary(
            data.name, data.sizes[0], data.sizes[1], len(data.classes), data.checksum()
        ),
        target=TargetSummary(
            accuracy=trained.about["accuracy"],
            images=trained.about["images"],
            parameters=parameter_count(trained.network),
            minimum_width_parameters=minimum_width_count(trained.network),
            seconds=trained.about["seconds"],
            folder=trained.folder.as_posix(),
            checksum=tensor_digest(trained.network.state_dict()),
            device=trained.about.get("device"),
            precision=trained.about.get("precision"),
            commit=trained.about.get("commit"),
        ),
        seeds=tuple(record.result() for record in records),
        evaluation=Evaluation(
            network="source" if everything else "collapsed",
            images=min(record.source_images for record in records),
            largest_logit_difference=max(record.largest_logit_difference for record in records),
            largest_difference_to_target=max(
                record.largest_difference_to_target for record in records
            ),
            implicit_layers=sum(layer.convolutions == "implicit" for layer in first.layers),
        ),
        trainable_parameters=first.trainable_parameters,
        parameters=first.parameters,
        outside_linear_region=sum(record.outside_linear_region for record in records),
        notes=tuple(dict.fromkeys(note for record in records for note in record.notes)),
        device=hardware.describe_device(device),
        versions=versions(),
        commit=commit(),
        finished=now(),
        host=host(),
        command=command(),
    )
