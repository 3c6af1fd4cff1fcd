"""Where the numbers of a page come from: commits, versions, devices, checksums, seeds, seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bnrecon.reporting.wording import count_of
from bnrecon.reproduction.page import FinishedRun, Page, device_name, listed
from bnrecon.reproduction.task_store import TaskResult
from bnrecon.runtime.units import format_duration

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
    if not page.results:
        return Origins()
    headings = TASKS if isinstance(page.results[0], TaskResult) else RUNS
    return Origins(headings, tuple(map(_record, page.results)))


def _record(one: TaskResult | FinishedRun) -> Record:
    if isinstance(one, TaskResult):
        device = device_name(one.machine)
        return Record((one.task, one.commit, device, f"{one.seconds:.1f}", one.key))
    result = one.result
    cells = (
        one.name,
        one.folder,
        result.commit or "installed",
        device_name(result.device),
        result.data.checksum[:DIGITS],
        (result.target.checksum or "")[:DIGITS],
        ", ".join(str(seed.seed) for seed in result.seeds),
        f"{result.seconds:.1f}",
        f"{result.target.seconds:.0f}",
    )
    return Record(cells, one.command)


def summary_of(pages: Sequence[Page]) -> list[tuple[str, str]]:
    """What all results of a paper share or differ by, as terms with their values."""
    results = [result for page in pages for result in page.results]
    tasks = [result for result in results if isinstance(result, TaskResult)]
    folders = {one.folder: one.result for one in results if isinstance(one, FinishedRun)}
    runs = list(folders.values())
    training = {run.target.folder: run.target.seconds for run in runs}
    seconds = sum(task.seconds for task in tasks) + sum(run.seconds for run in runs)
    seconds += sum(training.values())  # a training that was shared counts once
    counts = {"task": len(tasks), "run": len(runs)}
    machines = (*(task.machine for task in tasks), *(run.device for run in runs))
    versions = {", ".join(f"{name} {v}" for name, v in run.versions.items()) for run in runs}
    images = {f"{run.data.name} {run.data.checksum}" for run in runs}
    terms = {
        "results": " and ".join(count_of(n, name) for name, n in counts.items() if n),
        "commits": listed([*(t.commit for t in tasks), *(r.commit or "installed" for r in runs)]),
        "devices": listed(map(device_name, machines)),
        "versions": "; ".join(sorted(versions)),
        "images (SHA-256)": "; ".join(sorted(images)),
        "seeds of the sources": listed(str(seed.seed) for run in runs for seed in run.seeds),
        "time": format_duration(seconds) if seconds else "",
    }
    return [(term, value) for term, value in terms.items() if value]
