"""The engine: plan the work of a request, and compute what is missing."""

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
    """A part and its work."""

    name: str
    part: Part
    work: tuple[RunWork | TaskWork, ...]


def plan(study: Study, request: StudyRequest) -> list[PartPlan]:
    """Plan the work of the requested parts, without computing.

    Raises:
        UserError: an unknown scale, part or option; an option that a table's rows vary; an option
            without effect on the requested parts.
    """
    names = (*study.parts, *study.solvers)
    for name in request.parts:
        require_choice("", name, names)
    threads = composition.compose(request.options).threads
    named = [name for name in study.parts if name in request.parts]
    solvers = [name for name in study.solvers if name in request.parts]
    planned, used = [], set[str]()
    for name in named or study.parts:
        part, folders = study.part(name), (request.folder, request.shipped)
        options = part.applicable(request.options)
        used.update(options)
        work = part.plan_work(PartRequest(name, request.scale, options, *folders, threads))
        compares = any(item.solver in study.solvers for item in work)
        if solvers and (compares or not named):
            work = [item for item in work if item.solver in solvers]
        if work or named or not solvers:
            planned.append(PartPlan(name, part, tuple(work)))
    if unused := [option for option in result_options(request.options) if option not in used]:
        of = ", ".join(named) or study.name
        raise UserError(f"{unused[0]}: {of} has no run that it could change")
    return planned


def plan_again(words: Sequence[str]) -> dict[str, Work]:
    """All work of a study and its targets by key, for a job that computes some of it."""
    parts = plan(read_study(words[0]), requests.read(words[0], words[1:]))
    return with_targets([item for part in parts for item in part.work])


def compute_missing(work: Sequence[Work], executor: Executor, batch: Batch) -> None:
    """Compute the work that has no result, each item once.

    Damaged files are reported, set aside and computed again; others are not touched. Missing images
    are reported before anything is computed. Failed work is reported, and the rest continues. A
    call after an interruption continues from there.

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
    lost += sum(failure.key in missing for failure in failed)  # not counting targets
    mistakes.update(failure.gist for failure in failed if failure.kind == "mistake")
    lines = [f"{text} ({count} times)" if count > 1 else text for text, count in mistakes.items()]
    if failures := [failure for failure in failed if failure.kind == "failed"]:
        reasons = [f"{failure.label}: {failure.gist}; see {failure.log}" for failure in failures]
        for line in (*reasons, *lines):
            logger.error("%s", line)
        raise RunError(f"{lost} failed of {total} tasks; see {details}")
    if lines:
        raise UserError("; ".join(lines))


def compute(
    work: Mapping[str, Work], executor: Executor, batch: Batch, show: bool = True
) -> list[Outcome]:
    """Compute work, and write the batch's progress file; return the outcomes of failures.

    With several processes, targets that several items read are trained first. ``show`` says whether
    to show a progress bar, and a line for each item.
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
    """The missing work by key; damaged files are set aside."""
    missing: dict[str, Work] = {}
    for item in work:
        if isinstance(item, TaskWork):  # the main job sets aside its files itself
            item.set_aside_damaged(locks_folder)
        if not item.is_finished():
            missing.setdefault(item.key, item)
    return missing


def _leave_out_missing_images(missing: dict[str, Work]) -> Counter[str]:
    """Remove the work whose images are missing; return how many items have which problem."""
    problems: dict[str, str] = {}
    mistakes: Counter[str] = Counter()
    total = len(missing)
    for key, item in list(missing.items()):
        if (config := item.config) is None:
            continue
        spec = config.data
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
    """The remaining number and time, if the rest takes as long as what has ended."""
    if ended == total:
        return "none is left"
    rest = total - ended
    return f"{rest} of {total} left, about {format_duration(seconds / ended * rest)}"


def collect_finished(batch: Batch, work: Sequence[Work]) -> None:
    """Collect what a batch's jobs computed while no command waited; end it if nothing remains.

    Nothing of ``work`` is missing. Failures of other work are kept for the command that requests
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
