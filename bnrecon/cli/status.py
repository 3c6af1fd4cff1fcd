"""`bnrecon status` and `bnrecon cancel`: show progress of studies and sweeps, end their jobs."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bnrecon.cli import exit_codes, output
from bnrecon.cli.parser import Commands
from bnrecon.cli.words import is_sweep, outputs_folder, split_studies
from bnrecon.runtime.errors import UserError, printable, require_choice
from bnrecon.runtime.shipped import shipped_outputs
from bnrecon.runtime.units import format_duration

if TYPE_CHECKING:
    from bnrecon.reproduction.progress import Failure, Progress
    from bnrecon.reproduction.study_status import StudyStatus

OPTIONS = ("outputs",)
CANCEL_OPTIONS = ("scale", "outputs")

MOST = 10  # tasks that are named
ACTIVE = ("running", "unclear", "detached")
BY_JOBS = ("detached", "results not collected")  # progress comes from the jobs, not from a command

STATES = {
    "running": "in progress",
    "unclear": "in progress, unless its process ended without reporting",
    "detached": "in progress on a cluster; its command waits for it and makes the tables",
    "results not collected": "its jobs have ended{failures}; its command makes the tables",
    "finished": "finished",
    "failed": "finished, with failures",
    "interrupted": "interrupted",
    "killed": "its process ended without reporting (killed, or the machine went down)",
}


def add_commands(commands: Commands) -> None:
    """Add `status` and `cancel`."""
    commands.add("status", _status)
    commands.add("cancel", _cancel)


def _status(arguments: argparse.Namespace) -> int:
    """Print the state of studies."""
    names, options = split_studies(arguments.words, OPTIONS)
    folder = outputs_folder(options.get("outputs"))
    output.write(_text(_look(folder, names), folder, names))
    return exit_codes.DONE


def _look(folder: Path, names: Sequence[str]) -> list[StudyStatus]:
    """The studies, or those in ``names``, that have a last command or jobs."""
    from bnrecon.reproduction.study_status import studies, sweeps, with_jobs
    from bnrecon.studies import registry

    parts = {name: registry.find(name).parts for name in registry.STUDIES}
    stored = (*studies(folder, shipped_outputs(folder), parts), *sweeps(folder))
    selected = [with_jobs(study) for study in stored if not names or study.study in names]
    return [study for study in selected if study.progress or study.problem or study.jobs]


def _text(studies: Sequence[StudyStatus], folder: Path, names: Sequence[str]) -> str:
    """Everything in progress, or else the last study; with ``names``, each of those studies."""
    active = [study for study in studies if study.state in ACTIVE]
    shown = studies if names else [*active, *(study for study in studies if study.problem)]
    parts = [_study_text(study) for study in shown]
    parts += [
        f"{name}: no command has recorded progress in {folder}; bnrecon ls studies lists results"
        for name in names
        if name not in {study.study for study in studies}
    ]
    if not active and not names:
        from bnrecon.reproduction.study_status import latest

        last = latest(studies)
        last_text = "" if last is None else f" The last one:\n\n{_study_text(last)}"
        parts.append(f"No study is in progress in {folder}.{last_text}")
    return "\n\n".join(parts)


def _study_text(study: StudyStatus) -> str:
    """One study: its state, and one or more lines for each fact."""
    from bnrecon.jobs.work import title

    failures = ", with failures" if any(jobs.failed for jobs in study.jobs) else ""
    state = STATES.get(study.state, study.state).format(failures=failures)
    lines = [f"{printable(title(study.study, study.scale))}: {printable(study.problem or state)}"]
    previous = ""
    for name, text in (*_facts(study), *_jobs(study)):
        lines.append(f"  {'' if name == previous else name:<13}{printable(text)}")
        previous = name
    return "\n".join(lines)


def _facts(study: StudyStatus) -> Iterator[tuple[str, str]]:
    """The facts about the last command, by name."""
    if (progress := study.progress) is None:
        return
    from bnrecon.reproduction.study_status import seconds_since

    yield "computes", _leader(study, progress)
    active = study.state in ACTIVE
    at_work = "running" if active else "begun"
    failed, running = len(progress.failed), len(progress.running)
    if study.state not in BY_JOBS:
        remaining = max(0, progress.total - progress.finished - failed - running)
        counts = {"failed": failed, at_work: running, "left": remaining}
        nonzero = [f"{count} {name}" for name, count in counts.items() if count]
        yield "tasks", ", ".join([f"{progress.finished} of {progress.total} done", *nonzero])
    when = "for {}" if active else "{} ago"
    lists = {
        at_work: [
            f"{item.label}, {when.format(format_duration(seconds_since(item.since)))}"
            for item in progress.running
        ],
        "failed": [f"{failure.label}: {_reason(failure)}" for failure in progress.failed],
    }
    for name, texts in lists.items():
        more = [f"and {len(texts) - MOST} more"] if len(texts) > MOST else []
        yield from ((name, text) for text in (*texts[:MOST], *more))
    if study.state in ("running", "unclear"):
        for text in _remaining_time(study, progress):
            yield "time left", text
    elif study.state not in ("finished", *BY_JOBS):
        yield "resume with", progress.command


def _leader(study: StudyStatus, progress: Progress) -> str:
    """Who computes, and since when or until when."""
    from bnrecon.reproduction.study_status import seconds_since

    leader = f"process {progress.pid} on {progress.host}"
    who = leader if progress.processes == 1 else f"{progress.executor}, led by {leader}"
    began = f"began {format_duration(seconds_since(progress.started))} ago"
    wrote = f"{format_duration(seconds_since(progress.updated))} ago"
    unseen = "whether it still runs cannot be checked from this machine"
    end = {
        "running": "",
        "unclear": f", last heard of {wrote}; {unseen}",
        "killed": f", last heard of {wrote}",
    } | dict.fromkeys(BY_JOBS, f", left it to its jobs {wrote}")
    return f"{who}, {began}{end.get(study.state, f', ended {wrote}')}"


def _reason(failure: Failure) -> str:
    return f"{failure.message}; see {failure.log}" if failure.log else failure.message


def _jobs(study: StudyStatus) -> Iterator[tuple[str, str]]:
    """The state of a cluster's jobs, and the command that collects their results if none does."""
    for jobs in study.jobs:
        counts = {name: vars(jobs)[name] for name in ("finished", "failed", "running", "queued")}
        tasks = ", ".join(f"{count} {name}" for name, count in counts.items())
        states = ", ".join(f"{count} {state}" for state, count in jobs.jobs.items())
        at = jobs.problem or states or "all have ended"
        folder = jobs.submission.folder
        yield jobs.submission.cluster, f"tasks: {tasks}; jobs: {at}; logs in {folder}"
    if study.jobs and (study.state in BY_JOBS or study.progress is None):
        yield "resume with", study.jobs[0].submission.command


def _remaining_time(study: StudyStatus, progress: Progress) -> Iterator[str]:
    """The time left at each part's present pace, and the parts for which it is unknown."""
    remaining, finished = progress.remaining_by_part, progress.seconds_by_part
    if not remaining:
        yield "no task is left; tables and figures are being made"
        return
    if timed := [part for part in remaining if part in finished]:
        seconds = sum(remaining[part] * statistics.fmean(finished[part]) for part in timed)
        processes = progress.processes or sum(each.jobs.get("running", 0) for each in study.jobs)
        duration = format_duration(seconds / max(1, processes))
        yield f"about {duration}, if the rest of {', '.join(timed)} is like its finished tasks"
    for part in (part for part in remaining if part not in finished):
        yield f"not known for {remaining[part]} of {part}: none finished"


def _cancel(arguments: argparse.Namespace) -> int:
    """Cancel queued and running jobs; print which, or that there were none."""
    names, options = split_studies(arguments.words, CANCEL_OPTIONS)
    if not names:
        raise UserError("cancel: give a study's name, as in: bnrecon cancel burkholz2024")
    outputs, scale = outputs_folder(options.get("outputs")), options.get("scale")
    from bnrecon.reproduction.study import SCALES

    if scale is not None:
        require_choice("scale=", scale, SCALES)
    from bnrecon.jobs.record import cancel

    sweeps = [name for name in names if is_sweep(outputs, name)]
    if scale is not None and sweeps:
        raise UserError(f"scale={scale}: {sweeps[0]} is a sweep, which has no scale; leave it out")
    for name in names:
        folder = outputs / ("sweeps" if name in sweeps else "studies") / name
        lines = cancel(folder, scale)
        for line in lines or [f"no queued or running job of {name} is known ({folder})"]:
            output.write(line)
    return exit_codes.DONE
