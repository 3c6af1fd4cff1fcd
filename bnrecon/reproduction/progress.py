"""How far a study is: a file that its leading process adds a line to per event, for others to read.

Its lines are JSON: first what was asked for, then each start and each outcome, last how it ended.
A last line that was cut off is left out.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from bnrecon.jobs.work import Batch, Detached, Executor, Outcome, Started, Work
from bnrecon.runtime import files
from bnrecon.runtime.provenance import now

HEADER = ("study", "scale", "command", "host", "pid", "executor", "processes", "started")


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
    """How far a study is."""

    study: str  # its name
    scale: str  # its scale
    command: str  # what continues it
    host: str  # the machine of the leading process
    pid: int  # the leading process
    executor: str  # who computes, in words, as "2 processes"
    processes: int  # how many pieces of work are computed at once; 0 where that is not known
    started: str  # when the leading process began (ISO 8601, UTC)
    updated: str  # when it last wrote this
    # How it ended ("finished", "failed", "interrupted", "detached"); ``None`` while it goes on
    ended: str | None
    total: int  # pieces of work that were missing at the start
    finished: int  # how many of these have a result by now
    failed: tuple[Failure, ...]  # those that failed
    running: tuple[Running, ...]  # those that somebody is at
    seconds_by_part: dict[str, tuple[float, ...]]  # seconds that each finished piece of a part took
    remaining_by_part: dict[str, int]  # number of pieces neither finished nor failed, by part


def read(path: Path) -> Progress:
    """Read a progress file.

    Raises:
        Damaged: it is damaged, or was written by another version.
        FileNotFoundError: there is none, or it has no line yet.
    """
    *lines, cut_off = path.read_text(encoding="utf-8", errors="replace").split("\n")
    if not lines:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    try:
        return _fold([json.loads(line) for line in lines])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise files.Damaged(
            f"{path} is damaged, or was written by another version of bnrecon ({reason})"
        ) from None


def _fold(lines: Sequence[Mapping[str, Any]]) -> Progress:
    """What the lines say together."""
    first, *events = lines
    for moment in (first["started"], *(line["at"] for line in lines)):
        datetime.datetime.fromisoformat(moment)  # raises ValueError where it is no time
    remaining: dict[str, int] = dict(first["left_by_part"])
    running: dict[str, Running] = {}
    failed: list[Failure] = []
    spent: dict[str, list[float]] = {}
    for event in events:
        if event["event"] == "started":
            running[event["label"]] = Running(event["label"], event["part"], event["at"])
        elif event["event"] in ("done", "mistake", "failed"):
            running.pop(event["label"], None)
            remaining[event["part"]] -= 1
            if event["event"] == "done":
                spent.setdefault(event["part"], []).append(event["seconds"])
            else:
                failed.append(Failure(event["label"], event["gist"], event["log"]))
    ended = events[-1]["how"] if events and events[-1]["event"] == "ended" else None
    return Progress(
        **{name: first[name] for name in HEADER},
        updated=lines[-1]["at"],
        ended=ended,
        total=sum(first["left_by_part"].values()),
        finished=sum(map(len, spent.values())),
        failed=tuple(failed),
        running=() if ended else tuple(running.values()),
        seconds_by_part={part: tuple(seconds) for part, seconds in spent.items()},
        remaining_by_part={part: count for part, count in remaining.items() if count},
    )


class _Keeper:
    """Adds a line per event to the file of a study whose work is being computed."""

    def __init__(self, file: TextIO, work: Iterable[Work]) -> None:
        self._file = file
        self._parts = {item.key: (item.label, item.part) for item in work}
        self.failed = False

    def note(self, event: Started | Outcome) -> None:
        """Take down an event."""
        if event.key not in self._parts:
            return
        label, part = self._parts[event.key]
        if isinstance(event, Started):
            self.write(event="started", label=label, part=part)
            return
        self.failed |= event.kind != "done"
        told = {"seconds": round(event.seconds, 1), "gist": event.gist, "log": event.log}
        self.write(event=event.kind, label=label, part=part, **told)

    def write(self, **content: object) -> None:
        """Add a line, with the time."""
        with contextlib.suppress(OSError):  # a full disk is for the results to report
            self._file.write(json.dumps({"at": now(), **content}) + "\n")
            self._file.flush()


@contextlib.contextmanager
def keep(batch: Batch, executor: Executor, work: Iterable[Work]) -> Iterator[_Keeper]:
    """Keep a batch's progress file, a new one, for the block; at last it says how that ended."""
    work = list(work)
    batch.folder.mkdir(parents=True, exist_ok=True)
    # Another command that shares the work goes on in the old file.
    new = batch.progress.with_name(f".{batch.progress.name}-{os.getpid()}")
    file = new.open("w", encoding="utf-8")
    os.replace(new, batch.progress)
    keeper, ended = _Keeper(file, work), "interrupted"
    keeper.write(
        study=batch.folder.name,
        scale=batch.scale,
        command=batch.command,
        host=socket.gethostname(),
        pid=os.getpid(),
        executor=executor.name,
        processes=executor.processes,
        started=now(),
        left_by_part=Counter(item.part for item in work),
    )
    try:
        yield keeper
        ended = "failed" if keeper.failed else "finished"
    except Detached:
        ended = "detached"
        raise
    finally:
        keeper.write(event="ended", how=ended)
        with contextlib.suppress(OSError):  # what a full disk has not taken
            file.close()
