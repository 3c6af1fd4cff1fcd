"""How far a study is: a small file that its leading process keeps, and that others read."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bnrecon.reproduction.executors import Executor
from bnrecon.reproduction.outcome import Outcome, Started
from bnrecon.reproduction.work import Work
from bnrecon.runtime import files

__all__ = ["Failure", "Progress", "Running", "keep", "progress_path", "read"]


@dataclass(frozen=True)
class Running:
    """Work that somebody is at, since when (ISO 8601, UTC)."""

    label: str
    part: str
    since: str


@dataclass(frozen=True)
class Failure:
    """Work that failed, the reason in one line, and the file with the details."""

    label: str
    message: str
    log: str


@dataclass(frozen=True)
class Progress:
    """How far a study is.

    Args:
        study: its name.
        scale: its scale.
        command: what continues it.
        host: the machine of the leading process.
        pid: the leading process.
        executor: who computes, in words, as "2 processes".
        processes: how many pieces of work are computed at once; 0 where that is not known.
        started: when the leading process began (ISO 8601, UTC).
        updated: when it last wrote this.
        ended: how it ended ("finished", "failed", "interrupted"); ``None`` while it goes on.
        total: pieces of work that were missing at the start.
        finished: how many of these have a result by now.
        failed: those that failed.
        running: those that somebody is at.
        seconds_by_part: seconds that each finished piece of a part took.
        left_by_part: number of pieces that are neither finished nor failed, by part.
    """

    study: str
    scale: str
    command: str
    host: str
    pid: int
    executor: str
    processes: int
    started: str
    updated: str
    ended: str | None
    total: int
    finished: int
    failed: tuple[Failure, ...]
    running: tuple[Running, ...]
    seconds_by_part: dict[str, tuple[float, ...]]
    left_by_part: dict[str, int]


def progress_path(folder: Path, scale: str) -> Path:
    """Where the file lies in a study's folder."""
    return folder / f"progress-{scale}.json"


def read(path: Path) -> Progress:
    """Read a progress file.

    Raises:
        Damaged: it is damaged, or was written by another version.
        FileNotFoundError: there is none.
    """
    content = files.read_json(path)
    try:
        content["failed"] = tuple(Failure(**item) for item in content["failed"])
        content["running"] = tuple(Running(**item) for item in content["running"])
        spent = content["seconds_by_part"]
        content["seconds_by_part"] = {part: tuple(seconds) for part, seconds in spent.items()}
        return Progress(**content)
    except (AttributeError, KeyError, TypeError) as error:
        raise files.Damaged(f"{path} was written by another version of bnrecon ({error})") from None


class _Keeper:
    """Keeps the file of a study whose work is being computed."""

    def __init__(self, path: Path, first: Progress, work: Iterable[Work]) -> None:
        self._path, self._now = path, first
        self._open = {item.key: item for item in work}
        self._write()

    def note(self, event: Started | Outcome) -> None:
        """Take down an event, and write the file."""
        now = self._now
        if isinstance(event, Started):
            known = {found.label for found in now.running}
            if (item := self._open.get(event.key)) is not None and item.label not in known:
                new = Running(item.label, item.part, _utc())
                self._now = dataclasses.replace(now, running=(*now.running, new))
                self._write()
            return
        running = tuple(found for found in now.running if found.label != event.label)
        self._now = now = dataclasses.replace(now, running=running)
        if (item := self._open.pop(event.key, None)) is None:
            self._write()
            return
        if event.kind == "done":
            spent = dict(now.seconds_by_part)
            spent[item.part] = (*spent.get(item.part, ()), round(event.seconds, 1))
            now = dataclasses.replace(now, finished=now.finished + 1, seconds_by_part=spent)
        else:
            failure = Failure(event.label, event.gist, event.log)
            now = dataclasses.replace(now, failed=(*now.failed, failure))
        self._now = dataclasses.replace(now, left_by_part=_count_parts(self._open.values()))
        self._write()

    def end(self, how: str) -> None:
        """Take down how the leading process ended."""
        self._now = dataclasses.replace(self._now, ended=how, running=())
        self._write()

    def _write(self) -> None:
        now = dataclasses.replace(self._now, updated=_utc())
        with contextlib.suppress(OSError):  # a full disk is for the results to report
            files.write_json(self._path, dataclasses.asdict(now))


@contextlib.contextmanager
def keep(path: Path, command: str, executor: Executor, work: Iterable[Work]) -> Iterator[_Keeper]:
    """Keep a study's progress file for the block; at its end the file says how it ended.

    Args:
        path: see ``progress_path``.
        command: what continues the study.
        executor: who computes.
        work: what is missing.
    """
    work = list(work)
    first = Progress(
        study=path.parent.name,
        scale=path.stem.removeprefix("progress-"),
        command=command,
        host=socket.gethostname(),
        pid=os.getpid(),
        executor=executor.name,
        processes=executor.processes,
        started=_utc(),
        updated="",
        ended=None,
        total=len(work),
        finished=0,
        failed=(),
        running=(),
        seconds_by_part={},
        left_by_part=_count_parts(work),
    )
    keeper = _Keeper(path, first, work)
    try:
        yield keeper
    except BaseException:
        keeper.end("interrupted")
        raise
    keeper.end("failed" if keeper._now.failed else "finished")


def _count_parts(work: Iterable[Work]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in work:
        counts[item.part] = counts.get(item.part, 0) + 1
    return counts


def _utc() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
