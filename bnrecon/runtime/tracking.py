"""What a run sends to trackers (TensorBoard, trackio, wandb) while it works, each thing once.

The packages that compute know a ``TrackedRun``: they log an epoch, a layer, a seed, a result. What
a library makes of that is a ``Tracker``, written higher up and handed down. Nothing that goes wrong
in one of them ends the work: it is warned of once, and that tracker is left out from there on.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from bnrecon.runtime import files, locks

__all__ = ["NO_TRACKERS", "Plain", "TrackedRun", "Tracker", "Trackers", "Values", "flatten"]

logger = logging.getLogger(__name__)

Plain = bool | int | float | str
Values = Mapping[str, float]


class Tracker(Protocol):
    """A library that keeps and shows what is logged, of one run at a time.

    A run is ``runs/NAME`` or ``targets/NAME``, its folder below the outputs.
    """

    @property
    def name(self) -> str:
        """What the user calls it, as in ``tracker=tensorboard``."""

    @property
    def pause(self) -> float:
        """Seconds between two flushes at least; what costs much is not flushed after each entry."""

    @property
    def lag(self) -> float:
        """Seconds from a flush until an entry is kept for good; ``finish`` waits for it."""

    @property
    def view(self) -> str:
        """How to look at what it has: a command."""

    def record(self, run: str) -> Path:
        """The file that lists what was sent of a run; it lies where the tracker's data lie."""

    def start(self, run: str, config: Mapping[str, Plain], before: int) -> None:
        """Begin a run, or go on with it where ``before`` entries were sent already."""

    def log(self, kind: str, step: int, values: Values) -> None:
        """Take numbers by name (``epoch/loss``); ``step`` is an epoch, a layer or a seed."""

    def result(self, values: Values) -> None:
        """Take the numbers that the run ends with."""

    def flush(self) -> None:
        """Have entries written, so that they outlive this process, however it ends."""

    def finish(self) -> None:
        """End the run that was started."""


class TrackedRun:
    """Where a training or a run logs what it has done. Logging it twice adds nothing.

    >>> TrackedRun([]).epoch(1, {"loss": 2.3})  # without a tracker nothing happens
    """

    def __init__(self, sessions: Sequence[_Session]) -> None:
        self._sessions = sessions

    def epoch(self, number: int, values: Values) -> None:
        """Log what an epoch came to."""
        self._log("epoch", number, values, f"epoch {number}")

    def layer(self, seed: int, number: int, values: Values) -> None:
        """Log how a layer was solved, ``number`` counting the layers of a seed from 1."""
        self._log("layer", number, _of_seed(seed, values), f"layer {number} of seed {seed}")

    def layer_error(self, seed: int, number: int, values: Values) -> None:
        """Log how far a rebuilt layer is from the target's, known when the seed is finished."""
        key = f"error of layer {number} of seed {seed}"
        self._log("layer", number, _of_seed(seed, values), key)

    def seed(self, seed: int, values: Values) -> None:
        """Log how good the source network of a seed is."""
        self._log("seed", seed, values, f"seed {seed}")

    def result(self, values: Values) -> None:
        """Log the numbers that the run ends with."""
        tagged = {f"result/{name}": value for name, value in values.items()}
        for session in self._sessions:
            session.send("result", lambda tracker: tracker.result(tagged))

    def _log(self, kind: str, step: int, values: Values, key: str) -> None:
        tagged = {f"{kind}/{name}": value for name, value in values.items()}
        for session in self._sessions:
            session.send(key, lambda tracker: tracker.log(kind, step, tagged))


def _of_seed(seed: int, values: Values) -> Values:
    return {f"{name}/seed-{seed}": value for name, value in values.items()}


class Trackers:
    """The trackers of a command.

    Args:
        trackers: one for each library.
        at_once: flush while a run goes on, as it may be killed at any time; otherwise at its end.
    """

    def __init__(self, trackers: Sequence[Tracker] = (), at_once: bool = True) -> None:
        self.trackers = tuple(trackers)
        self.at_once = at_once
        self.failed: dict[str, str] = {}  # why a tracker is left out, by its name
        self.added = self.known = 0  # entries that were sent, and that were there before

    @property
    def views(self) -> list[str]:
        """How to look at what they have: a command each."""
        return [tracker.view for tracker in self.trackers]

    @contextlib.contextmanager
    def track(self, run: str, config: Mapping[str, Any]) -> Iterator[TrackedRun]:
        """Log one run within the block.

        A run that another process logs at this moment is left to that process.

        Args:
            run: ``runs/NAME`` or ``targets/NAME``.
            config: its options, nested as they are.
        """
        with contextlib.ExitStack() as held:
            sessions = []
            for tracker in self.trackers:
                session = _Session(self, tracker, run, flatten(config))
                if session.attempt(functools.partial(session.open, held)):
                    sessions.append(session)
            try:
                yield TrackedRun(sessions)
            finally:
                for session in sessions:
                    session.close()


class _Session:
    """One run in one tracker, which is started when there is something new to send."""

    def __init__(
        self, owner: Trackers, tracker: Tracker, run: str, config: Mapping[str, Plain]
    ) -> None:
        self.owner, self.tracker, self.run, self.config = owner, tracker, run, config
        self.sent: set[str] = set()
        self.pending: list[tuple[str, float]] = []
        self.started = False
        self.due = 0.0

    def open(self, held: contextlib.ExitStack) -> bool:
        """Read what was sent before; ``False`` while another process logs this run."""
        self.path = self.tracker.record(self.run)
        if not held.enter_context(locks.lock_file(self.path.with_suffix(".lock"))):
            logger.debug("%s: another process sends it to %s", self.run, self.tracker.name)
            return False
        with contextlib.suppress(FileNotFoundError):
            files.require_regular(self.path)
            *lines, torn = self.path.read_text(encoding="utf-8", errors="replace").split("\n")
            self.sent = set(lines)
            if torn:  # by a process that was killed while it wrote
                files.write_text(self.path, "".join(f"{line}\n" for line in lines))
        return True

    def send(self, key: str, send: Callable[[Tracker], None]) -> None:
        """Send an entry that was not sent before."""
        if key in self.sent:
            self.owner.known += 1
        else:
            self.attempt(lambda: self._send(key, send))

    def close(self) -> None:
        """Flush what is left, and end the run in the tracker."""
        if self.started:
            self.attempt(self.tracker.flush)
            self.attempt(self.tracker.finish, even_after_failure=True)
            self.attempt(lambda: self._note(math.inf))

    def attempt(self, action: Callable[[], Any], even_after_failure: bool = False) -> Any:
        """Do something with the tracker; whatever goes wrong, the work goes on without it."""
        failed, name = self.owner.failed, self.tracker.name
        if name in failed and not even_after_failure:
            return None
        try:
            return action()
        except Exception as error:
            if name not in failed:
                failed[name] = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                logger.warning(
                    "%s failed and is left out from here on (%s); the run goes on, and "
                    "bnrecon export %s adds what is missing",
                    *(name, failed[name], name),
                )
                logger.debug("%s failed", name, exc_info=True)
            return None

    def _send(self, key: str, send: Callable[[Tracker], None]) -> None:
        if not self.started:
            self.started = True
            self.tracker.start(self.run, self.config, len(self.sent))
        send(self.tracker)
        self.sent.add(key)
        self.pending.append((key, time.monotonic()))
        if self.owner.at_once and time.monotonic() >= self.due:
            self.tracker.flush()
            self._note(time.monotonic() - self.tracker.lag)
            self.due = time.monotonic() + self.tracker.pause

    def _note(self, before: float) -> None:
        """Note what was sent before a time, which the tracker has for good."""
        noted = [key for key, at in self.pending if at <= before]
        if noted:
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(f"{key}\n" for key in noted))
            self.owner.added += len(noted)
            del self.pending[: len(noted)]


NO_TRACKERS = Trackers()


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, Plain]:
    """Nested options by their names on the command line, lists and ``None`` as they are written.

    >>> flatten({"train": {"lr": 0.1, "seed": None}, "seeds": [0, 1]})
    {'train.lr': 0.1, 'train.seed': 'null', 'seeds': '[0,1]'}
    """
    flat: dict[str, Plain] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            flat[f"{prefix}{name}"] = f"[{','.join(map(str, value))}]"
        else:
            flat[f"{prefix}{name}"] = "null" if value is None else value
    return flat
