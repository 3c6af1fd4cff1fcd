"""`bnrecon status`: how far a study is, told by another process than the one that computes it."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnrecon.cli import exit_codes, output
from bnrecon.cli.parser import Parser
from bnrecon.cli.words import given_folder, split_studies
from bnrecon.runtime.errors import printable
from bnrecon.runtime.interruption import finish_loading
from bnrecon.runtime.shipped import shipped_outputs
from bnrecon.runtime.units import format_duration

if TYPE_CHECKING:
    from bnrecon.reproduction.progress import Progress
    from bnrecon.reproduction.study_status import StudyStatus

__all__ = ["OPTIONS", "add_commands"]

OPTIONS = ("outputs",)

EVERY = 5.0  # seconds from one look to the next, with --watch
MOST = 10  # pieces of work that are named
CLEAR = "\x1b[H\x1b[2J"  # to the upper left of a terminal, and all of it erased
GOING_ON = ("running", "unclear", "detached")
BY_JOBS = ("detached", "results not collected")  # whose progress the jobs know, and no command

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


def add_commands(commands: Any, shared: Parser) -> None:
    """Add `status` to the parser's commands."""
    parser = commands.add_parser(
        "status",
        parents=[shared],
        help="how far a study is that another terminal, or a cluster, computes",
        usage="bnrecon status [STUDY ...] [outputs=FOLDER] [--watch] [-q] [-v] [-h]",
        description="Tell how far a study is that another terminal, or a cluster, computes: what "
        "is done,\nrunning, failed and left, and for how long.",
    )
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument(
        "--watch",
        action="store_true",
        help=f"refresh every {EVERY:g} seconds, until nothing is in progress",
    )
    parser.set_defaults(function=_tell)


def _tell(given: argparse.Namespace) -> int:
    """Print the state of studies, once or until they have ended."""
    names, options = split_studies(given.words, OPTIONS)
    folder = given_folder(options.get("outputs"))
    look = _look(folder, names)
    if not given.watch:
        output.write(_text(look, folder, names))
        return exit_codes.DONE
    finish_loading()
    with contextlib.suppress(KeyboardInterrupt):  # how one stops watching; nothing is interrupted
        _watch(folder, names)
    return exit_codes.DONE


def _look(folder: Path, names: Sequence[str]) -> list[StudyStatus]:
    """The studies with a last command or jobs, of all or of those that are named."""
    from bnrecon.reproduction.study_status import studies, sweeps, with_jobs
    from bnrecon.studies import registry

    known = {name: registry.find(name).parts for name in registry.STUDIES}
    found = [
        with_jobs(study)
        for study in (*studies(folder, shipped_outputs(folder), known), *sweeps(folder))
        if not names or study.study in names
    ]
    return [study for study in found if study.progress or study.problem or study.jobs]


def _watch(folder: Path, names: Sequence[str]) -> None:
    """Print the state of studies again and again, until nothing is in progress."""
    between = CLEAR if sys.stdout.isatty() else "\n"
    output.write(_text(found := _look(folder, names), folder, names))
    while any(study.state in GOING_ON for study in found):
        time.sleep(EVERY)
        found = _look(folder, names)
        sys.stdout.write(between)
        output.write(_text(found, folder, names))


def _text(found: Sequence[StudyStatus], folder: Path, names: Sequence[str]) -> str:
    """All that is in progress, or what was last; of studies that are named each."""
    going_on = [study for study in found if study.state in GOING_ON]
    damaged = [study for study in found if study.problem]
    shown = found if names else [*going_on, *damaged]
    parts = [_study_text(study) for study in shown]
    silent = [name for name in names if name not in {study.study for study in found}]
    parts += [
        f"{name}: no command has left its progress in {folder}; bnrecon ls studies lists results"
        for name in silent
    ]
    if not going_on and not names:
        from bnrecon.reproduction.study_status import latest

        last = latest(found)
        told = "" if last is None else f" The last one:\n\n{_study_text(last)}"
        parts.append(f"No study is in progress in {folder}.{told}")
    return "\n\n".join(parts)


def _study_text(study: StudyStatus) -> str:
    """One study: its state, and a line or more on each question."""
    from bnrecon.jobs.work import title

    heading = printable(title(study.study, study.scale))
    failures = ", with failures" if any(jobs.failed for jobs in study.jobs) else ""
    state = STATES.get(study.state, study.state).format(failures=failures)
    lines = [f"{heading}: {printable(study.problem or state)}"]
    facts = [] if study.progress is None else _facts(study, study.progress)
    for name, text in (*facts, *_jobs(study)):
        lines.append(f"  {name:<13}{printable(text)}")
    return "\n".join(lines)


def _facts(study: StudyStatus, progress: Progress) -> Iterator[tuple[str, str]]:
    """What is to be told of a study, by name; a second line of the same name has an empty one."""
    yield "computes", _leader(study, progress)
    if study.state not in BY_JOBS:
        yield "tasks", _counts(study, progress)
    yield from _running(study, progress)
    for number, failure in enumerate(progress.failed[:MOST]):
        log = f"; see {failure.log}" if failure.log else ""
        yield "" if number else "failed", f"{failure.label}: {failure.message}{log}"
    if len(progress.failed) > MOST:
        yield "", f"and {len(progress.failed) - MOST} more"
    if study.state in ("running", "unclear"):
        yield from _time_left(study, progress)
    elif study.state not in ("finished", *BY_JOBS):
        yield "resume with", progress.command


def _leader(study: StudyStatus, progress: Progress) -> str:
    """Who computes, and since when or until when."""
    from bnrecon.reproduction.study_status import seconds_since

    leader = f"process {progress.pid} on {progress.host}"
    who = leader if progress.processes == 1 else f"{progress.executor}, led by {leader}"
    began = f"began {format_duration(seconds_since(progress.started))} ago"
    wrote = f"{format_duration(seconds_since(progress.updated))} ago"
    if study.state == "running":
        return f"{who}, {began}"
    if study.state == "unclear":
        unseen = "whether it still runs cannot be checked from this machine"
        return f"{who}, {began}, last heard of {wrote}; {unseen}"
    if study.state == "killed":
        return f"{who}, {began}, last heard of {wrote}"
    left = "left it to its jobs" if study.state in BY_JOBS else "ended"
    return f"{who}, {began}, {left} {wrote}"


def _counts(study: StudyStatus, progress: Progress) -> str:
    failed, running = len(progress.failed), len(progress.running)
    left = max(0, progress.total - progress.finished - failed - running)
    counts = {"failed": failed, _at_work(study): running, "left": left}
    told = [f"{count} {name}" for name, count in counts.items() if count]
    return ", ".join([f"{progress.finished} of {progress.total} done", *told])


def _jobs(study: StudyStatus) -> Iterator[tuple[str, str]]:
    """What a cluster does, and how to go on where nobody collects that."""
    for found in study.jobs:
        given, work = found.submission, vars(found)
        told = [f"{work[name]} {name}" for name in ("finished", "failed", "running", "queued")]
        jobs = ", ".join(f"{count} {state}" for state, count in found.jobs.items())
        state = found.problem or jobs or "all have ended"
        yield given.cluster, f"tasks: {', '.join(told)}; jobs: {state}; logs in {given.folder}"
    if study.jobs and (study.state in BY_JOBS or study.progress is None):
        yield "resume with", study.jobs[0].submission.command


def _at_work(study: StudyStatus) -> str:
    return "running" if study.state in GOING_ON else "begun"


def _running(study: StudyStatus, progress: Progress) -> Iterator[tuple[str, str]]:
    """What is computed, and for how long; what took how long of the same part."""
    from bnrecon.reproduction.study_status import seconds_since

    if progress.ended is not None:
        return
    for number, item in enumerate(progress.running[:MOST]):
        seen = progress.seconds_by_part.get(item.part, ())
        usual = f" ({len(seen)} of {item.part} took {_range(min(seen), max(seen))})" if seen else ""
        spent = format_duration(seconds_since(item.since))
        told = f"for {spent}{usual}" if study.state in GOING_ON else f"{spent} ago"
        yield "" if number else _at_work(study), f"{item.label}, {told}"
    if len(progress.running) > MOST:
        yield "", f"and {len(progress.running) - MOST} more"


def _time_left(study: StudyStatus, progress: Progress) -> Iterator[tuple[str, str]]:
    """A range for the parts of which enough is finished, and why there is none for the others."""
    from bnrecon.reproduction.progress import time_left
    from bnrecon.reproduction.study_status import seconds_since

    if not any(progress.left_by_part.values()):
        yield "time left", "no task is left; tables and figures are being made"
        return
    jobs = sum(found.jobs.get("running", 0) for found in study.jobs)
    running = [(item.part, seconds_since(item.since)) for item in progress.running]
    found = time_left(
        progress.left_by_part,
        progress.seconds_by_part,
        running,
        processes=max(1, progress.processes or jobs),
    )
    told = "not known yet"
    if found.parts:
        rest = f"the rest of {', '.join(found.parts)}" if found.unknown else "the rest"
        told = f"{_range(found.low, found.high)}, if {rest} is like what is finished of it"
        if not progress.processes:
            told += f" and {jobs or 1} job{'s' if jobs > 1 else ''} run all the time"
    yield "time left", told
    for part, reason in found.unknown.items():
        yield "", f"not known for {progress.left_by_part[part]} of {part}: {reason}"


def _range(low: float, high: float) -> str:
    """Two lengths of time, once where they read the same.

    >>> _range(70, 200), _range(61, 62)
    ('70 s to 3 min', '61 s to 62 s')
    """
    ends = dict.fromkeys((format_duration(low), format_duration(high)))
    return " to ".join(ends)
