"""The engine: what a request consists of, and the computation of what is missing."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from bnrecon.config import composition
from bnrecon.data import DataSpec, load
from bnrecon.reproduction.experiment import Experiment
from bnrecon.reproduction.options import option_name, result_options
from bnrecon.reproduction.request import StudyRequest
from bnrecon.reproduction.run_table import RunTable
from bnrecon.reproduction.study import SCALES, Study
from bnrecon.reproduction.work import RunWork, TaskWork, Work
from bnrecon.run.estimate import duration
from bnrecon.runtime import locks
from bnrecon.runtime.digests import content_key
from bnrecon.runtime.errors import Interrupted, RunError, UserError, nearest

__all__ = ["ExperimentPlan", "TablePlan", "compute_missing", "plan"]

logger = logging.getLogger(__name__)
details = logging.getLogger(f"{__name__}.details")  # goes to a study's log alone

ROOMS = ("run", "reconstruction", "targets", "solvers")  # whose progress goes to a study's log


@dataclass(frozen=True)
class ExperimentPlan:
    """An experiment with its tasks."""

    name: str
    part: Experiment
    work: tuple[TaskWork, ...]


@dataclass(frozen=True)
class TablePlan:
    """A table of runs with its runs."""

    name: str
    part: RunTable
    work: tuple[RunWork, ...]


def plan(study: Study, request: StudyRequest) -> list[ExperimentPlan | TablePlan]:
    """The requested parts with their work; nothing is computed.

    Raises:
        UserError: a scale, part or option that there is not; an option by which a table's rows
            differ; an option that changes nothing of the requested parts.
    """
    if request.scale not in SCALES:
        raise UserError(f"scale={request.scale}: {nearest(request.scale, SCALES)}")
    known = (*study.parts, *study.solvers)
    for name in request.parts:
        if name not in known:
            raise UserError(f"{name}: {nearest(name, known)}")
    composition.compose(request.options)
    named = [name for name in study.parts if name in request.parts]
    solvers = [name for name in study.solvers if name in request.parts]
    planned = [_plan_part(study, name, request, solvers) for name in named or study.parts]
    if solvers and not named:
        planned = [part for part in planned if isinstance(part, TablePlan) and part.work]
    takes_options = (isinstance(p, TablePlan) or p.part.options is not None for p in planned)
    if (changing := result_options(request.options)) and not any(takes_options):
        raise UserError(f"{changing[0]}: {', '.join(named)} has no run that an option could change")
    return planned


def _plan_part(
    study: Study, name: str, request: StudyRequest, solvers: Sequence[str]
) -> ExperimentPlan | TablePlan:
    part = study.part(name)
    if isinstance(part, RunTable):
        rows = part.rows(request.scale, request.options)
        compares = any(row.labels.get("solver") in study.solvers for row in rows)
        if solvers and (compares or name not in request.parts):
            rows = [row for row in rows if row.labels.get("solver") in solvers]
        runs = (RunWork(name, row, composition.compose(row.overrides)) for row in rows)
        return TablePlan(name, part, tuple(runs))
    device = {option_name(o): o.partition("=")[2] for o in request.options}.get("device", "auto")
    tasks = (
        TaskWork(name, request.scale, task, request.folder, request.shipped, device)
        for task in part.tasks(request.scale, request.options)
    )
    return ExperimentPlan(name, part, tuple(tasks))


def compute_missing(work: Sequence[Work], log: Path) -> None:
    """Compute the work that has no result; several processes share it.

    Damaged files are named, set aside and computed again, the others stay untouched. Images that
    cannot be found are reported before anything is computed. Work that fails is reported, and the
    rest goes on. Stopped at any point and called again, it continues from there.

    Args:
        work: tasks and runs, in the order in which they are to be computed.
        log: the file that the progress of each is written to.

    Raises:
        RunError: some of it failed.
        UserError: all that failed were mistakes in the request.
    """
    claims = log.parent / ".locks"
    missing = _missing(work, claims)
    if not missing:
        return
    total = len(missing)
    logger.info("%d of %d tasks to compute; details go to %s", total, len(work), log)
    mistakes = _leave_out_missing_images(missing)
    failures: list[str] = []
    started = time.monotonic()
    with tqdm(total=len(missing), desc="tasks", disable=None) as bar, _details_to(log):
        for key in locks.share_work(list(missing), claims):
            item = missing[key]
            bar.set_postfix_str(item.label)
            before = time.monotonic()
            gist = "done elsewhere" if item.is_finished() else _compute(item, failures, mistakes)
            bar.update()
            spent = duration(time.monotonic() - before)
            left = _left(list(missing.values()), time.monotonic() - started)
            logger.info("%s: %s, %s; %s", item.label, gist, spent, left)
    _raise_failures(failures, mistakes, f"{total} tasks; see {log}")


def _missing(work: Sequence[Work], claims: Path) -> dict[str, Work]:
    """What has to be computed, by key; damaged files are set aside."""
    missing: dict[str, Work] = {}
    for item in work:
        if item.damage() is not None:
            _set_aside(item, claims)
        if not item.is_finished():
            missing.setdefault(item.key, item)
    return missing


def _set_aside(item: Work, claims: Path) -> None:
    with locks.lock_file(
        claims / content_key({"name": item.key}),
        lambda: f"waiting for another process to finish {item.label}",
    ):
        item.set_aside()


def _compute(item: Work, failures: list[str], mistakes: Counter[str]) -> str:
    """Compute one; return its gist, or why it failed."""
    details.info("%s: %s", item.label, item.command)
    try:
        gist = item.compute()
        details.info("%s: %s", item.label, gist)
        return gist
    except (Interrupted, KeyboardInterrupt):
        raise
    except UserError as error:
        mistakes[str(error)] += 1
        details.error("%s failed: %s", item.label, error)
        return f"failed: {error}"
    except Exception as error:  # no memory, a diverging training: whatever it is, the rest goes on
        defect = not isinstance(error, RunError)
        details.error("%s failed: %s", item.label, error, exc_info=defect)
        failures.append(f"{item.label}: {error}")
        return f"failed: {error}"


def _leave_out_missing_images(missing: dict[str, Work]) -> Counter[str]:
    """Take out the work whose images cannot be found; what is wrong with how many."""
    problems: dict[str, str | None] = {}
    mistakes: Counter[str] = Counter()
    total = len(missing)
    for key, item in list(missing.items()):
        if (spec := item.data) is None:
            continue
        name = repr(spec)
        if name not in problems:
            problems[name] = _problem_of(spec)
        if (problem := problems[name]) is not None:
            del missing[key]
            mistakes[problem] += 1
    for problem, count in mistakes.items():
        logger.error("%d of %d tasks cannot be computed: %s", count, total, problem)
    return mistakes


def _problem_of(spec: DataSpec) -> str | None:
    try:
        with composition.option_names("data"):
            load(spec)
    except UserError as error:
        return str(error)
    return None


@contextlib.contextmanager
def _details_to(log: Path) -> Iterator[None]:
    """Write what the rooms below report to a file, and not to the terminal."""
    log.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(log, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    loggers = [details, *(logging.getLogger(f"bnrecon.{room}") for room in ROOMS)]
    before = [(found, found.level, found.propagate) for found in loggers]
    for found in loggers:
        found.addHandler(handler)
        found.setLevel(logging.INFO)
        found.propagate = False
    try:
        yield
    finally:
        for found, level, propagate in before:
            found.removeHandler(handler)
            found.setLevel(level)
            found.propagate = propagate
        handler.close()


def _left(work: Sequence[Work], seconds: float) -> str:
    """How much is left, and for how long, if the rest takes as long as what is done by now."""
    done = sum(item.is_finished() for item in work)
    left = len(work) - done
    if not left:
        return "none is left"
    about = f", about {duration(seconds / done * left)}" if done else ""
    return f"{left} of {len(work)} left{about}"


def _raise_failures(failures: list[str], mistakes: Counter[str], among: str) -> None:
    for failure in failures:
        logger.error("%s", failure)
    lines = [
        f"{message}{f' ({count} times)' if count > 1 else ''}"
        for message, count in mistakes.items()
    ]
    if failures:
        for line in lines:
            logger.error("%s", line)
        raise RunError(f"{len(failures) + mistakes.total()} failed of {among}")
    if lines:
        raise UserError("; ".join(lines))
