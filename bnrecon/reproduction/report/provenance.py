"""Where the numbers of a page come from: commits, versions, devices, checksums, seeds, seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bnrecon.reporting.result import RunResult
from bnrecon.reproduction.page import FinishedRun, Page, device_name, listed
from bnrecon.reproduction.task_store import TaskResult
from bnrecon.runtime.units import format_duration

__all__ = ["Origins", "Record", "origins_of", "summary_of"]

TASKS = ("task", "commit", "device", "seconds", "key")
RUNS = ("row", "run", "commit", "device", "data", "weights", "seeds", "seconds", "training")
DIGITS = 12  # of a checksum


@dataclass(frozen=True)
class Record:
    """A task or a run, with the command that computes it where it has one of its own."""

    cells: tuple[str, ...]
    command: str = ""


@dataclass(frozen=True)
class Origins:
    """The tasks or runs of a page, by columns."""

    headings: tuple[str, ...] = ()
    records: tuple[Record, ...] = ()


def origins_of(page: Page) -> Origins:
    """A record for each finished task or run of a page."""
    tasks, runs = _tasks(page), _runs(page)
    if tasks:
        return Origins(TASKS, tuple(map(_of_task, tasks)))
    return Origins(RUNS, tuple(map(_of_run, runs))) if runs else Origins()


def _tasks(page: Page) -> list[TaskResult]:
    return [result for result in page.results if isinstance(result, TaskResult)]


def _runs(page: Page) -> list[FinishedRun]:
    return [result for result in page.results if isinstance(result, FinishedRun)]


def _of_task(task: TaskResult) -> Record:
    seconds = f"{task.seconds:.1f}"
    return Record((task.task, task.commit, device_name(task.machine), seconds, task.key))


def _of_run(run: FinishedRun) -> Record:
    result = run.result
    return Record(
        (
            run.name,
            run.folder,
            result.commit or "installed",
            device_name(result.device),
            result.data.checksum[:DIGITS],
            (result.target.checksum or "")[:DIGITS],
            ", ".join(str(seed.seed) for seed in result.seeds),
            f"{result.seconds:.1f}",
            f"{result.target.seconds:.0f}",
        ),
        run.command,
    )


def summary_of(pages: Sequence[Page]) -> list[tuple[str, str]]:
    """What all results of a paper share or differ by, as terms with their values."""
    tasks = [task for page in pages for task in _tasks(page)]
    runs = list({run.folder: run.result for page in pages for run in _runs(page)}.values())
    training = {run.target.folder: run.target.seconds for run in runs}
    seconds = sum(task.seconds for task in tasks) + sum(run.seconds for run in runs)
    seconds += sum(training.values())  # a training that was shared counts once
    terms = {
        "results": " and ".join(_counted(tasks, "task") + _counted(runs, "run")),
        "commits": listed([*(t.commit for t in tasks), *(r.commit or "installed" for r in runs)]),
        "devices": listed(
            device_name(name) for name in (*(t.machine for t in tasks), *(r.device for r in runs))
        ),
        "versions": "; ".join(_versions(runs)),
        "images (SHA-256)": "; ".join(
            sorted({f"{run.data.name} {run.data.checksum}" for run in runs})
        ),
        "seeds of the sources": listed(str(seed.seed) for run in runs for seed in run.seeds),
        "time": format_duration(seconds) if seconds else "",
    }
    return [(term, value) for term, value in terms.items() if value]


def _counted(found: Sequence[object], what: str) -> list[str]:
    return [f"{len(found):,} {what}{'' if len(found) == 1 else 's'}"] if found else []


def _versions(runs: Iterable[RunResult]) -> list[str]:
    """The libraries' versions, a text for each set of them that results were computed with."""
    return sorted({", ".join(f"{name} {v}" for name, v in run.versions.items()) for run in runs})
