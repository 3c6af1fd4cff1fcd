"""Where the numbers of a page come from: commits, versions, devices, checksums, seeds, seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bnrecon.reporting.result import RunResult
from bnrecon.reproduction.page import Page, device_name, listed
from bnrecon.reproduction.row_command import command_of
from bnrecon.reproduction.run_table import Cell
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
    tasks, cells = _parted(page)
    if tasks:
        return Origins(TASKS, tuple(map(_of_task, tasks)))
    records = (_of_run(cell, cell.result) for cell in cells if cell.result is not None)
    return Origins(RUNS, tuple(records)) if cells else Origins()


def _parted(page: Page) -> tuple[list[TaskResult], list[Cell]]:
    tasks = [found for found in page.results if isinstance(found, TaskResult)]
    return tasks, [found for found in page.results if isinstance(found, Cell)]


def _of_task(task: TaskResult) -> Record:
    seconds = f"{task.seconds:.1f}"
    return Record((task.task, task.commit, device_name(task.machine), seconds, task.key))


def _of_run(cell: Cell, result: RunResult) -> Record:
    return Record(
        (
            cell.name,
            cell.folder.name,
            result.commit or "installed",
            device_name(result.device),
            result.data.checksum[:DIGITS],
            (result.target.checksum or "")[:DIGITS],
            ", ".join(str(seed.seed) for seed in result.seeds),
            f"{result.seconds:.1f}",
            f"{result.target.seconds:.0f}",
        ),
        command_of(cell),
    )


def summary_of(pages: Sequence[Page]) -> list[tuple[str, str]]:
    """What all results of a paper share or differ by, as terms with their values."""
    tasks = [task for page in pages for task in _parted(page)[0]]
    cells = [cell for page in pages for cell in _parted(page)[1]]
    runs = list({cell.folder: cell.result for cell in cells if cell.result is not None}.values())
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
