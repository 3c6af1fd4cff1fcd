"""How a process is stopped: by Ctrl-C, SIGTERM or a time limit, and with the one that started it."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from types import FrameType

from bnrecon.runtime.errors import Interrupted, UserError

__all__ = [
    "WORKER",
    "StopRequest",
    "end_with_parent",
    "leave_while_loading",
    "loaded",
    "loading",
    "seconds",
]


WORKER = "BNRECON_WORKER"  # in the environment of a worker, whose standard input its parent holds


GRACE = 60  # seconds that a worker has to reach a safe point when its parent is gone


def leave_while_loading() -> None:
    """Until ``loaded``, Ctrl-C and SIGTERM end the process at once: libraries are not left half loaded."""
    signal.signal(signal.SIGINT, _leave)
    signal.signal(signal.SIGTERM, _leave)


def loading() -> bool:
    """Whether Ctrl-C still ends the process at once, without a ``KeyboardInterrupt``."""
    return signal.getsignal(signal.SIGINT) is _leave


def loaded() -> None:
    """From here on Ctrl-C and SIGTERM are a ``KeyboardInterrupt``.

    Does nothing in a thread beside the main one, which signals do not reach.
    """
    if threading.current_thread() is threading.main_thread():
        if loading():
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def _leave(*_: object) -> None:
    os.write(2, b"bnrecon: interrupted before anything was begun\n")
    os._exit(130)


def end_with_parent() -> None:
    """In a worker: SIGTERM when the process that started it is gone, the end ``GRACE`` s later."""
    if os.environ.pop(WORKER, None) is None:
        return

    def watch() -> None:
        os.read(0, 1)  # nothing is ever written: this ends when the other end is closed
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os._exit(130)

    threading.Thread(target=watch, daemon=True).start()


class StopRequest:
    """Inside the ``with`` block Ctrl-C and SIGTERM only leave a note; a second one stops at once, as usual.

    ``reason`` is ``None`` until a stop is asked for. ``time_limit`` (seconds from now) asks for one by itself.

    >>> with StopRequest(time_limit=0) as stop:
    ...     stop.reason
    'the time limit of 0 s was reached'
    """

    def __init__(self, time_limit: float | None = None):
        self._time_limit = time_limit
        self._deadline = None if time_limit is None else time.monotonic() + time_limit
        self._signal: str | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        # Signals reach the main thread alone; elsewhere (a launcher's worker thread, a notebook) the time limit still holds.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
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

    def check(self, saved: str) -> None:
        """Raise ``Interrupted`` if a stop was asked for, saying what is safe."""
        if self.reason is not None:
            raise Interrupted(
                f"stopped because {self.reason}; {saved}; the same command goes on from there"
            )


def seconds(text: str) -> float:
    """Read a length of time: ``90`` or ``90s``, ``30m``, ``2h``.

    >>> seconds("30m")
    1800.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None:
        raise UserError(
            f"train.time_limit={text}: give seconds, or a number followed by s, m or h, as in 30m"
        )
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
