"""Logging of a run: the rows of its ``metrics.jsonl``, which also go to trackers.

The packages that compute use a ``TrackedRun``. The adapters to libraries (TensorBoard, wandb, ...)
belong to a higher package and are passed in. Their errors do not end the work: one warning is
shown, and the library is no longer used.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bnrecon.runtime import files, locks
from bnrecon.runtime.digests import dotted

logger = logging.getLogger(__name__)

Plain = bool | int | float | str
METRICS = "metrics.jsonl"

# Takes a row: its number, its type and step (``epoch``, 3), the values by name (``epoch/loss``).
Log = Callable[[int, str, int, Mapping[str, float]], None]
# Opens ``runs/NAME`` or ``targets/NAME`` with its options; the last argument says whether to
# replace or to continue what the library has of it.
Opener = Callable[
    [str, Mapping[str, Plain], bool], contextlib.AbstractContextManager[Log, bool | None]
]


@dataclass
class Trackers:
    """The libraries, by name, to which a command logs its runs, below ``folder``.

    ``views`` has a command for each that shows its content. ``whole`` sends a run at its end, as
    ``bnrecon export`` does, not row by row.
    """

    openers: Mapping[str, Opener] = field(default_factory=dict)
    folder: Path = Path()
    views: Sequence[str] = ()
    whole: bool = False
    failed: dict[str, str] = field(default_factory=dict)  # why a library is no longer used
    sent: int = 0  # rows

    @contextlib.contextmanager
    def track(self, run: str, config: Mapping[str, Any]) -> Iterator[TrackedRun]:
        """Log ``runs/NAME`` or ``targets/NAME``, unless another process is logging it."""
        tracked, path = TrackedRun(self, run, flatten(config)), self.folder / run / METRICS
        with contextlib.ExitStack() as stack:

            def read() -> None:
                if stack.enter_context(locks.lock_file(path.with_suffix(".lock"))):
                    tracked.read(path)

            if self.openers:
                self.attempt(METRICS, read)
            try:
                yield tracked
            finally:
                tracked.close()

    def attempt(self, name: str, action: Callable[[], Any]) -> None:
        """Do something with a library; if it fails, the work continues without the library."""
        if name in self.failed:
            return
        try:
            action()
        except Exception as error:
            why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self.failed[name] = why
            rest = "the run continues, and bnrecon export adds what is missing"
            rest = "the export ends here" if self.whole else rest
            logger.warning("%s failed and is not used any more (%s); %s", name, why, rest)
            logger.debug("%s failed", name, exc_info=True)


class TrackedRun:
    """The log of a training or a run. Logging something twice adds nothing."""

    def __init__(self, owner: Trackers, run: str, config: Mapping[str, Plain]) -> None:
        self._owner, self._run, self._config = owner, run, config
        self._path: Path | None = None  # nothing is logged without one
        self._rows: dict[tuple[Any, ...], dict[str, float]] = {}
        self._open: dict[str, tuple[Log, contextlib.ExitStack]] = {}

    def read(self, path: Path) -> None:
        """Read the rows logged earlier; drop invalid ones, which a kill may leave.

        A run that is sent as a whole starts without rows.
        """
        with contextlib.suppress(FileNotFoundError):
            files.require_regular(path)
            if self._owner.whole:
                _write(path, [])
            *lines, torn = path.read_text(encoding="utf-8", errors="replace").split("\n")
            rows = [row for row in map(_parse, lines) if row]
            self._rows = {_key(row): row for row in rows}
            if torn or len(rows) < len(lines):
                _write(path, rows)
            if damaged := len(lines) - len(rows):
                logger.warning("%s: %d damaged rows are skipped", path, damaged)
        self._path = path

    def log(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        """Log numbers of an epoch, a layer, a seed, or the result.

        Numbers that differ from those logged before are of another training or run of this name:
        they replace these and all that came after them.
        """
        row = {kind: step, **{f"{kind}/{name}": value for name, value in values.items()}}
        key, text = _key(row), json.dumps(row, sort_keys=True)
        if self._path is None:
            return
        keys, first = list(self._rows), len(self._rows)
        if key in self._rows:
            if text == json.dumps(self._rows[key], sort_keys=True):
                return
            self._rows = {before: self._rows[before] for before in keys[: keys.index(key)]}
            self._owner.attempt(METRICS, functools.partial(_write, self._path, self._rows.values()))
            self._close_libraries()
            first = 0
        self._rows[key] = row
        self._owner.attempt(METRICS, functools.partial(_append, self._path, row))
        if not self._owner.whole:
            self._send(first)

    def log_epoch(self, row: Mapping[str, float]) -> None:
        """Log a row of a trainer's log."""
        values = {name: value for name, value in row.items() if name != "epoch"}
        self.log("epoch", int(row["epoch"]), values)

    def log_training(self, about: Mapping[str, Any]) -> None:
        """Log all of a finished training, as ``target.json`` has it."""
        for row in about["log"]:
            self.log_epoch(row)
        self.log("result", 0, {name: about[name] for name in ("accuracy", "images", "seconds")})

    def close(self) -> None:
        """End the run in the libraries; with ``whole``, send it first."""
        if self._owner.whole:
            self._send(0)
        self._close_libraries()

    def _close_libraries(self) -> None:
        for name, (_, stack) in self._open.items():
            self._owner.attempt(name, stack.close)
        self._open.clear()

    def _send(self, first: int) -> None:
        for name in self._owner.openers:
            self._owner.attempt(name, functools.partial(self._send_to, name, first))

    def _send_to(self, name: str, first: int) -> None:
        for number, row in enumerate(list(self._rows.values())[first:], start=first):
            if name not in self._open:
                stack = contextlib.ExitStack()
                opener = self._owner.openers[name](self._run, self._config, first == 0)
                self._open[name] = stack.enter_context(opener), stack
            (kind, step), *values = row.items()
            self._open[name][0](number, kind, int(step), dict(values))
            self._owner.sent += 1


NO_TRACKERS = Trackers()


def flatten(config: Mapping[str, Any]) -> dict[str, Plain]:
    """Nested options by their names on the command line, with lists and ``None`` as written there.

    >>> flatten({"train": {"lr": 0.1, "seed": None}, "seeds": [0, 1]})
    {'train.lr': 0.1, 'train.seed': 'null', 'seeds': '[0,1]'}
    """
    return {
        name: f"[{','.join(map(str, value))}]"
        if isinstance(value, list | tuple)
        else ("null" if value is None else value)
        for name, value in dotted(config)
    }


def _key(row: Mapping[str, float]) -> tuple[Any, ...]:
    """What distinguishes rows: the step, and the names of the values in any order."""
    return (next(iter(row.values())), *sorted(row))


def _parse(line: str) -> dict[str, float] | None:
    """The row of a line: names with numbers, the step's first; ``None`` if it is invalid."""
    with contextlib.suppress(ValueError):
        row = json.loads(line)
        if isinstance(row, dict) and row and all(isinstance(v, int | float) for v in row.values()):
            return row
    return None


def _write(path: Path, rows: Iterable[Mapping[str, float]]) -> None:
    files.write_text(path, "".join(f"{json.dumps(row)}\n" for row in rows))


def _append(path: Path, row: Mapping[str, float]) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
