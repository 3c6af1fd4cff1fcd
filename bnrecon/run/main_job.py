"""The main job: load or train a target, rebuild it from frozen random features, evaluate it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from bnrecon.config.checks import check_machine
from bnrecon.config.schema import RunConfig
from bnrecon.data import Images
from bnrecon.data.spec import has_pixels_of_the_user
from bnrecon.reporting.result import (
    DataSummary,
    Evaluation,
    RunResult,
    SeedRecord,
    TargetSummary,
)
from bnrecon.reporting.run_tables import run_text, table_files
from bnrecon.reporting.trackers.events import log_run, tracked_options
from bnrecon.run import finished, preparation
from bnrecon.run.announcement import announce
from bnrecon.run.context import RunContext, Share
from bnrecon.run.naming import run_folder
from bnrecon.run.seed import run_seed
from bnrecon.runtime import distributed, files, hardware, locks
from bnrecon.runtime.digests import json_values, tensor_digest
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.provenance import command, commit, host, now, versions
from bnrecon.runtime.tracking import NO_TRACKERS
from bnrecon.targets.location import is_trained
from bnrecon.targets.models import minimum_width_count, parameter_count
from bnrecon.targets.reparameterization import trained_parameters
from bnrecon.targets.store import Trained, obtain_target

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A finished run: its folder, its result, and notes for the user."""

    folder: Path
    result: RunResult
    notes: list[str]

    def text(self) -> str:
        """The output of ``bnrecon run``: notes, tables, and the folder in the last line."""
        return "\n\n".join([*self.notes, run_text(self.result), str(self.folder)])


def run(config: RunConfig, share: Share | None = None) -> Run:
    """Do the main job. A run that has a result is not run again.

    ``share`` is called with the layers of a seed that are not stored, if there are several, and may
    store some.

    Raises:
        UserError: the request is not possible.
        RunError: it failed.
        Interrupted: it was stopped. What was finished is on disk and will be reused.
    """
    distributed.refuse_torchrun("bnrecon run")
    commit()
    preparation.check_names(config)
    preparation.check_root(config)
    data = preparation.load_images(config) if has_pixels_of_the_user(config.data.name) else None
    folder = run_folder(config, data)
    result = finished.read_result(folder, config)
    if result is None:
        check_machine(config)
        data = data or preparation.load_images(config)  # before anything is written
        lock = locks.lock_folder(folder, f"the run {folder.name}")
        with hardware.use_threads(config.threads), lock:
            # Another process may have done it while this one waited.
            result = finished.read_result(folder, config, quarantine_damaged=True)
            if result is None:
                device = hardware.resolve_device(config.device)
                return Run(folder, _compute(config, folder, data, device, share), [])
    trackers = preparation.announce_trackers(config)
    with trackers.track(f"runs/{folder.name}", tracked_options(config)) as tracked:
        log_run(tracked, result)
    notes = finished.notes_on(config, result, folder, data)
    finished.restore_tables(config, folder, result)
    return Run(folder, result, notes)


def _compute(
    config: RunConfig, folder: Path, data: Images, device: torch.device, share: Share | None
) -> RunResult:
    """Obtain the target, rebuild it from each seed, test every source network."""
    if len(data.classes) < 2:
        raise UserError(
            f"data={config.data.name}: all images are of one class, {data.classes[0]}; "
            "a run compares predictions, and needs two classes or more"
        )
    announce(config, data, device)
    finished.write_config(config, folder)
    trackers = preparation.announce_trackers(config)
    target = obtain_target(config.target_request, data, device, trackers)
    accuracy = f"{preparation.tested_on(target)} accuracy {target.about['accuracy']:.2f}%"
    logger.info("target    %s (n=%d), %s", accuracy, target.about["images"], target.folder)
    with trackers.track(f"runs/{folder.name}", tracked_options(config)) as tracked:
        context = RunContext(config, data, device, folder, target, tracked, share)
        records = [run_seed(context, seed) for seed in config.seeds]
        result = _write(context, summarize(context, records))
        log_run(tracked, result)
    return result


def summarize(run: RunContext, records: Sequence[SeedRecord]) -> RunResult:
    """The run's result from its seeds' records; the worst evaluation stands for all."""
    data, first = run.data, records[0]
    return RunResult(
        config=json_values(dataclasses.asdict(run.config)),
        data=DataSummary(
            data.name, data.sizes[0], data.sizes[1], len(data.classes), data.checksum()
        ),
        target=_target(run.target),
        seeds=tuple(record.result() for record in records),
        evaluation=_evaluation(records),
        trainable_parameters=first.trainable_parameters,
        parameters=first.parameters,
        outside_linear_region=sum(record.outside_linear_region for record in records),
        notes=tuple(dict.fromkeys(note for record in records for note in record.notes)),
        device=hardware.describe_device(run.device),
        versions=versions(),
        commit=commit(),
        finished=now(),
        host=host(),
        command=command(),
    )


def _target(target: Trained) -> TargetSummary:
    return TargetSummary(
        accuracy=target.about["accuracy"],
        images=target.about["images"],
        parameters=parameter_count(target.network),
        minimum_width_parameters=minimum_width_count(target.network),
        seconds=target.about["seconds"],
        folder=target.folder.as_posix(),
        checksum=tensor_digest(target.network.state_dict()),
        device=target.about.get("device"),
        precision=target.about.get("precision"),
        commit=target.about.get("commit"),
    )


def _evaluation(records: Sequence[SeedRecord]) -> Evaluation:
    all_images = all(record.source_images == record.images for record in records)
    return Evaluation(
        network="source" if all_images else "collapsed",
        images=min(record.source_images for record in records),
        largest_logit_difference=max(record.largest_logit_difference for record in records),
        largest_difference_to_target=max(record.largest_difference_to_target for record in records),
        implicit_layers=sum(layer.convolutions == "implicit" for layer in records[0].layers),
    )


def _write(run: RunContext, result: RunResult) -> RunResult:
    """Write tables, figure and, last, ``result.json``, which marks the run as finished."""
    for name, text in table_files(result).items():
        files.write_text(run.folder / name, text)
    finished.draw_layers(run.folder, result)
    result.write(run.folder / "result.json")
    if not run.config.keep_source:
        for file in run.folder.glob("seed-*/source.safetensors"):
            file.unlink()
    return RunResult.read(run.folder / "result.json")


def train_only(config: RunConfig) -> str:
    """Train the target of a run, or load the trained one; in one process or under torchrun.

    Raises what ``obtain_target`` raises.

    Returns:
        Its accuracy and folder; an empty text in all but the first of several processes.
    """
    preparation.check_names(config)
    check_machine(config)
    preparation.check_root(config)
    device, request = hardware.resolve_device(config.device), config.target_request
    with hardware.use_threads(config.threads), distributed.join_processes(device):
        data = distributed.run_on_first_rank_before_others(lambda: preparation.load_images(config))
        stored = is_trained(request, data, device)
        rank = distributed.rank_and_world_size()[0]
        trackers = preparation.announce_trackers(config) if rank == 0 else NO_TRACKERS
        target = obtain_target(request, data, device, trackers)
    if rank > 0:
        return ""
    about, processes = target.about, target.about.get("processes", 1)
    return (
        f"{config.target.name} of width {config.target.width}: {preparation.tested_on(target)} "
        f"accuracy {about['accuracy']:.2f}% (n={about['images']}), "
        f"{trained_parameters(target.network):,} trainable parameters, "
        f"{'trained before in' if stored else 'trained in'} {about['seconds']:.0f} s"
        f"{f' by {processes} processes' if processes > 1 else ''}\n{target.folder}"
    )
