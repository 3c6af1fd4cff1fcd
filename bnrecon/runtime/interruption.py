"""Stopping a process: by Ctrl-C, a signal, or a time limit."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from bnrecon.runtime.errors import UserError

# Ctrl-C, a cancelled job, and the signal that Slurm sends before a job's time limit.
_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGUSR2")
    if hasattr(signal, name)  # Windows has no SIGUSR2
)

_received: list[int] = []
_postponed: list[int] = []  # signals until the libraries are loaded


def received_signal() -> int | None:
    """The last signal that asked this process to stop."""
    return _received[-1] if _received else None


@contextlib.contextmanager
def handle_signals(postpone: bool = False) -> Iterator[None]:
    """Handle Ctrl-C, SIGTERM and SIGUSR2 for a command; restore the previous handlers after it.

    An exception during an import leaves a library half loaded, and the process in an undefined
    state. Therefore a signal ends the process at once until ``finish_loading`` is called, and from
    then on raises ``KeyboardInterrupt``. Does nothing outside the main thread, the only one that
    receives signals.

    With ``postpone``, ``finish_loading`` raises for a signal that came before it: a job has to
    report how it ended, or that it must be requeued.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = _postpone if postpone else _exit_at_once
    _postponed.clear()
    before = {number: signal.signal(number, ours) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not set from Python
                signal.signal(number, handler)


def finish_loading() -> None:
    """Let signals raise ``KeyboardInterrupt`` from now on.

    Does nothing outside the main thread and outside ``handle_signals``.

    Raises:
        KeyboardInterrupt: for a signal that was postponed until now.
    """
    is_loading = signal.getsignal(signal.SIGINT) in (_exit_at_once, _postpone)
    if is_loading and threading.current_thread() is threading.main_thread():
        for number in _SIGNALS:
            signal.signal(number, _interrupt)
        if _postponed:
            _postponed.clear()
            raise KeyboardInterrupt


@contextlib.contextmanager
def ending_with_parent(parent: int) -> Iterator[None]:
    """Within the block, send SIGTERM to this process once its parent has ended.

    A killed process cannot stop its children; without this they would continue for hours. At the
    end of the block this process ends, too, if its parent has ended. The ``parent`` may have ended
    before the block.
    """
    done = threading.Event()

    def watch() -> None:
        while os.getppid() == parent:
            if done.wait(1):
                return
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()
        if os.getppid() != parent:
            os._exit(130)


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """Block signals within the block; a process forked there starts with them blocked.

    Until it calls ``leave_group``, a signal to its parent's group would kill it. Does nothing if
    signals cannot be blocked (Windows).
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_group(_worker: int = 0) -> None:
    """Leave Ctrl-C and torchrun's signals to this process's parent, which saves before it ends.

    Signals since the fork in ``signals_blocked`` are dropped; then signals are unblocked.
    ``DataLoader`` gives the number of its worker.
    """
    os.setpgid(0, 0)
    if hasattr(signal, "sigtimedwait"):  # macOS has none
        while signal.sigtimedwait(_SIGNALS, 0) is not None:
            pass
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    _received.append(number)
    raise KeyboardInterrupt


def _postpone(number: int, _frame: FrameType | None) -> None:
    _received.append(number)
    _postponed.append(number)


def _exit_at_once(*_: object) -> None:
    os.write(2, b"bnrecon: interrupted before any work began\n")
    os._exit(130)


REPEATED = 5  # seconds within which a cluster repeats a signal: SIGTERM comes twice


class StopRequest:
    """Records signals inside the ``with`` block; a second one stops as usual.

    The same signal within ``REPEATED`` seconds counts as one, unless it is Ctrl-C. A signal that
    comes too late for the block to stop has its usual effect after it.

    ``reason`` is ``None`` until a stop is requested; ``time_limit`` (seconds) requests one.

    >>> with StopRequest(time_limit=0) as stop:
    ...     stop.reason
    'the time limit of 0 s was reached'
    """

    def __init__(self, time_limit: float | None = None) -> None:
        self._time_limit = time_limit
        self._deadline = None if time_limit is None else time.monotonic() + time_limit
        self._signal: str | None = None
        self._received_at = 0.0
        self._previous: dict[int, Callable | int | None] = {}

    def __enter__(self) -> StopRequest:
        # Only the main thread receives signals; others have only the time limit.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        if self._signal is not None and kind is None:  # it came too late for the block to stop
            signal.raise_signal(signal.Signals[self._signal])

    def _record(self, number: int, _frame: FrameType | None) -> None:
        name, now = signal.Signals(number).name, time.monotonic()
        if name == self._signal != "SIGINT" and now - self._received_at < REPEATED:
            return
        if self._signal is not None:
            raise KeyboardInterrupt
        _received.append(number)
        self._signal, self._received_at = name, now

    @property
    def reason(self) -> str | None:
        """The reason to stop, or ``None``."""
        if self._signal is not None:
            return f"{self._signal} was received"
        if self._deadline is not None and time.monotonic() >= self._deadline:
            return f"the time limit of {self._time_limit:g} s was reached"
        return None


def parse_duration(text: str) -> float:
    """Read a duration in seconds: ``90`` or ``90s``, ``30m``, ``2h``.

    >>> parse_duration("30m")
    1800.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None:
        raise UserError(
            f"train.time_limit={text}: give seconds, or a number followed by s, m or h, as in 30m"
        )
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
