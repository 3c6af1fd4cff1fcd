"""The engine: what a request consists of, and the computation of what is missing."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from bnrecon.config import composition
from bnrecon.data import load
from bnrecon.jobs.computation import InProcess
from bnrecon.jobs.record import handing_out, submissions
from bnrecon.jobs.work import Batch, Executor, Outcome, Started, Work
from bnrecon.reproduction import progress
from bnrecon.reproduction import request as requests
from bnrecon.reproduction.request import StudyRequest, result_options
from bnrecon.reproduction.study import Part, PartRequest, Study, read_study
from bnrecon.reproduction.work import RunWork, TaskWork, shared_targets, with_targets
from bnrecon.runtime.errors import RunError, UserError, require_choice
from bnrecon.runtime.units import format_duration

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartPlan:
    """A part with its work."""

    name: str
    part: Part
    work: tuple[RunWork | TaskWork, ...]


def plan(study: Study, request: StudyRequest) -> list[PartPlan]:
    """The requested parts with their work; nothing is computed.

    Raises:
        UserError: a scale, part or option that there is not; an option by which a table's rows
            differ; an option that changes nothing of the requested parts.
    """
    names = (*study.parts, *study.solvers)
    for name in request.parts:
        require_choice("", name, names)
    threads = composition.compose(request.options).threads
    named = [name for name in study.parts if name in request.parts]
    solvers = [name for name in study.solvers if name in request.parts]
    planned = []
    for name in named or study.parts:
        part, folders = study.part(name), (request.folder, request.shipped)
        work = part.plan_work(PartRequest(name, request.scale, request.options, *folders, threads))
        compares = any(item.solver in study.solvers for item in work)
        if solvers and (compares or not named):
            work = [item for item in work if item.solver in solvers]
        if work or named or not solvers:
            planned.append(PartPlan(name, part, tuple(work)))
    takes_options = any(planned_part.part.takes_options for planned_part in planned)
    if (changing := result_options(request.options)) and not takes_options:
        of = ", ".join(named) or study.name
        raise UserError(f"{changing[0]}: {of} has no run that an option could change")
    return planned


def plan_again(words: Sequence[str]) -> dict[str, Work]:
    """All work of a study by key, and the targets that it reads, for a job that computes some."""
    parts = plan(read_study(words[0]), requests.read(words[0], words[1:]))
    return with_targets([item for part in parts for item in part.work])


def compute_missing(work: Sequence[Work], executor: Executor, batch: Batch) -> None:
    """Compute the work that has no result, each piece once.

    Damaged files are named, set aside and computed again, the others stay untouched. Images that
    cannot be found are reported before anything is computed. Work that fails is reported, and the
    rest goes on. Stopped at any point and called again, it continues from there.

    Raises:
        RunError: some of it failed.
        UserError: all that failed were mistakes in the request.
        Interrupted: it was stopped.
    """
    missing = _missing(work, batch.locks_folder)
    if not missing:
        collect_finished(batch, work)
        return
    total = len(missing)
    details = batch.details(executor.processes)
    logger.info("%d of %d tasks to compute; details go to %s", total, len(work), details)
    mistakes = _leave_out_missing_images(missing)
    lost = mistakes.total()
    failed = compute(missing, executor, batch)
    lost += sum(failure.key in missing for failure in failed)  # targets are no tasks
    mistakes.update(failure.gist for failure in failed if failure.kind == "mistake")
    lines = [f"{text} ({count} times)" if count > 1 else text for text, count in mistakes.items()]
    if failures := [failure for failure in failed if failure.kind == "failed"]:
        told = [f"{failure.label}: {failure.gist}; see {failure.log}" for failure in failures]
        for line in (*told, *lines):
            logger.error("%s", line)
        raise RunError(f"{lost} failed of {total} tasks; see {details}")
    if lines:
        raise UserError("; ".join(lines))


def compute(
    work: Mapping[str, Work], executor: Executor, batch: Batch, show: bool = True
) -> list[Outcome]:
    """Compute work, and keep the batch's progress file; return the outcomes of what failed.

    Where several processes compute, targets that several pieces read are trained first. ``show``
    says whether to show a bar, and a line for each piece.
    """
    targets = shared_targets(list(work.values())) if executor.processes != 1 else []
    planned: dict[str, Work] = {item.key: item for item in targets} | dict(work)
    failed: list[Outcome] = []
    started, ended = time.monotonic(), 0
    with (
        progress.keep(batch, executor, planned.values()) as keeper,
        contextlib.closing(executor.run([targets, list(work.values())])) as events,
        tqdm(total=len(planned), desc="tasks", disable=None if show else True) as bar,
    ):
        for event in events:
            keeper.note(event)
            if isinstance(event, Started):
                bar.set_postfix_str(planned[event.key].label)
                continue
            bar.update()
            ended += 1
            failed += [] if event.kind == "done" else [event]
            if show:
                gist = event.gist if event.kind == "done" else f"failed: {event.gist}"
                remaining = _remaining(ended, len(planned), time.monotonic() - started)
                spent = format_duration(event.seconds)
                logger.info("%s: %s, %s; %s", event.label, gist, spent, remaining)
    return failed


def _missing(work: Sequence[Work], locks_folder: Path) -> dict[str, Work]:
    """What has to be computed, by key; damaged files are set aside."""
    missing: dict[str, Work] = {}
    for item in work:
        if isinstance(item, TaskWork):  # the main job looks after its files itself
            item.set_aside_damaged(locks_folder)
        if not item.is_finished():
            missing.setdefault(item.key, item)
    return missing


def _leave_out_missing_images(missing: dict[str, Work]) -> Counter[str]:
    """Take out the work whose images cannot be found; what is wrong with how many."""
    problems: dict[str, str] = {}
    mistakes: Counter[str] = Counter()
    total = len(missing)
    for key, item in list(missing.items()):
        if (spec := item.data) is None:
            continue
        if repr(spec) not in problems:
            problems[repr(spec)] = ""
            try:
                with composition.option_names("data"):
                    load(spec)
            except UserError as error:
                problems[repr(spec)] = str(error)
        if problem := problems[repr(spec)]:
            del missing[key]
            mistakes[problem] += 1
    for problem, count in mistakes.items():
        logger.error("%d of %d tasks cannot be computed: %s", count, total, problem)
    return mistakes


def _remaining(ended: int, total: int, seconds: float) -> str:
    """How much is left, and for how long, if the rest takes as long as what has ended by now."""
    if ended == total:
        return "none is left"
    rest = total - ended
    return f"{rest} of {total} left, about {format_duration(seconds / ended * rest)}"


def collect_finished(batch: Batch, work: Sequence[Work]) -> None:
    """Collect what a batch's jobs computed while nobody waited; with nothing left, it has ended.

    Nothing of ``work`` is missing. What failed of other work stays, for the command that asks for
    it.
    """
    if not submissions(batch.folder, batch.scale):
        return
    items = with_targets(work)
    outcomes: dict[str, Outcome] = {}
    with handing_out(batch.folder):
        for submission in submissions(batch.folder, batch.scale):
            outcomes |= (done := submission.done())
            submission.collect(done.keys() | items.keys() & set(submission.keys))
    if submissions(batch.folder, batch.scale):
        return
    computed = [items[key] for key in outcomes if key in items]
    with progress.keep(batch, InProcess(batch.locks_folder, None), computed) as keeper:
        for item in computed:
            keeper.note(outcomes[item.key])
