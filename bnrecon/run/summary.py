"""The result of a run from the records of its seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bnrecon.reporting.result import (
    DataSummary,
    Evaluation,
    RunResult,
    SeedRecord,
    TargetSummary,
)
from bnrecon.run.context import RunContext
from bnrecon.runtime import hardware
from bnrecon.runtime.digests import json_values, tensor_digest
from bnrecon.runtime.provenance import command, commit, host, now, versions
from bnrecon.targets.models import minimum_width_count, parameter_count
from bnrecon.targets.store import Trained


def summarize(run: RunContext, records: Sequence[SeedRecord]) -> RunResult:
    """The run's result; the evaluations of its seeds are summarized by the worst."""
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
