"""The progress of a study: a file to which its leading process appends a line per event.

Its lines are JSON: first the request, then each start and each outcome, last how it ended. A
truncated last line is ignored.
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
from bnrecon.reporting.inventory import WRONG_CONTENT
from bnrecon.runtime import files
from bnrecon.runtime.provenance import now

HEADER = ("study", "scale", "command", "host", "pid", "executor", "processes", "started")


@dataclass(frozen=True)
class Running:
    """Work in progress, and when it started (ISO 8601, UTC)."""

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
    """The progress of a study."""

    study: str  # its name
    scale: str  # its scale
    command: str  # the command that continues it
    host: str  # the machine of the leading process
    pid: int  # the leading process
    executor: str  # who computes, in words, as "2 processes"
    processes: int  # how many items of work are computed at once; 0 if unknown
    started: str  # when the leading process began (ISO 8601, UTC)
    updated: str  # when it last wrote this
    # How it ended ("finished", "failed", "interrupted", "detached"); ``None`` while it continues
    ended: str | None
    total: int  # items of work that were missing at the start
    finished: int  # how many of these have a result
    failed: tuple[Failure, ...]  # failed work
    running: tuple[Running, ...]  # work in progress
    seconds_by_part: dict[str, tuple[float, ...]]  # seconds of each finished item, by part
    remaining_by_part: dict[str, int]  # number of items neither finished nor failed, by part


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
    except WRONG_CONTENT as error:
        reason = f"{type(error).__name__}: {error}"
        raise files.Damaged(
            f"{path} is damaged, or was written by another version of bnrecon ({reason})"
        ) from None


def _fold(lines: Sequence[Mapping[str, Any]]) -> Progress:
    """Combine the lines."""
    first, *events = lines
    first = {**first, "pid": int(first["pid"])}
    for moment in (first["started"], *(line["at"] for line in lines)):
        datetime.datetime.fromisoformat(moment).timestamp()  # raises ValueError if it is no time
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
                spent.setdefault(event["part"], []).append(float(event["seconds"]))
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
    """Appends a line per event to the progress file of a study."""

    def __init__(self, file: TextIO, work: Iterable[Work]) -> None:
        self._file = file
        self._parts = {item.key: (item.label, item.part) for item in work}
        self.failed = False

    def note(self, event: Started | Outcome) -> None:
        """Record an event."""
        if event.key not in self._parts:
            return
        label, part = self._parts[event.key]
        if isinstance(event, Started):
            self.write(event="started", label=label, part=part)
            return
        self.failed |= event.kind != "done"
        outcome = {"seconds": round(event.seconds, 1), "gist": event.gist, "log": event.log}
        self.write(event=event.kind, label=label, part=part, **outcome)

    def write(self, **content: object) -> None:
        """Append a line, with the time."""
        with contextlib.suppress(OSError):  # writing the results reports a full disk
            self._file.write(json.dumps({"at": now(), **content}) + "\n")
            self._file.flush()


@contextlib.contextmanager
def keep(batch: Batch, executor: Executor, work: Iterable[Work]) -> Iterator[_Keeper]:
    """Write a new progress file for a batch within the block; its last line says how it ended."""
    work = list(work)
    batch.folder.mkdir(parents=True, exist_ok=True)
    # Another command that shares the work continues with the old file.
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
        with contextlib.suppress(OSError):  # buffered lines, if the disk is full
            file.close()
