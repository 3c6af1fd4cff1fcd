"""How a process is stopped: by Ctrl-C, SIGTERM or a time limit, and with its parent process."""

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

__all__ = [
    "WORKER_VARIABLE",
    "StopRequest",
    "end_with_parent",
    "finish_loading",
    "handle_signals",
    "is_loading",
    "parse_duration",
]


# In the environment of a worker, whose standard input its parent holds open.
WORKER_VARIABLE = "BNRECON_WORKER"


GRACE = 60  # seconds that a worker has to reach a safe point after its parent has ended


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM for a command; the caller's handlers come back after the block.

    Until ``finish_loading`` is called they end the process at once, so that no library is left
    half loaded. Does nothing outside the main thread, which alone receives signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _exit_at_once) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: one that was not set from Python
                signal.signal(number, handler)


def is_loading() -> bool:
    """Whether Ctrl-C still ends the process at once, without a ``KeyboardInterrupt``."""
    return signal.getsignal(signal.SIGINT) is _exit_at_once


def finish_loading() -> None:
    """From here on Ctrl-C and SIGTERM raise ``KeyboardInterrupt``.

    Does nothing outside the main thread and outside ``handle_signals``.
    """
    if threading.current_thread() is threading.main_thread() and is_loading():
        for number in _SIGNALS:
            signal.signal(number, signal.default_int_handler)


def _exit_at_once(*_: object) -> None:
    os.write(2, b"bnrecon: interrupted before any work began\n")
    os._exit(130)


def end_with_parent() -> None:
    """In a worker: SIGTERM when its parent process has ended, and ``GRACE`` s later the end."""
    if os.environ.pop(WORKER_VARIABLE, None) is None:
        return

    def watch() -> None:
        os.read(0, 1)  # nothing is ever written: this returns when the parent's end is closed
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(130)

    threading.Thread(target=watch, daemon=True).start()


class StopRequest:
    """Inside the ``with`` block Ctrl-C and SIGTERM are recorded; a second one stops as usual.

    ``reason`` is ``None`` until a stop is requested; ``time_limit`` (seconds) requests one.

    >>> with StopRequest(time_limit=0) as stop:
    ...     stop.reason
    'the time limit of 0 s was reached'
    """

    def __init__(self, time_limit: float | None = None) -> None:
        self._time_limit = time_limit
        self._deadline = None if time_limit is None else time.monotonic() + time_limit
        self._signal: str | None = None
        self._previous: dict[int, Callable | int | None] = {}

    def __enter__(self) -> StopRequest:
        # Only the main thread receives signals; in another one (a launcher's) the time limit holds.
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._record)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _record(self, number: int, _frame: FrameType | None) -> None:
        if self._signal is not None:
            raise KeyboardInterrupt
        self._signal = signal.Signals(number).name

    @property
    def reason(self) -> str | None:
        """Why to stop, or ``None``."""
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
