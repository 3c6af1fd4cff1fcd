"""Stop requests (Ctrl-C, SIGTERM, a time limit) turned into a question that long loops ask at a safe point."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

from bnrecon.errors import Interrupted

__all__ = ["StopRequest"]


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
            raise Interrupted(f"stopped because {self.reason}; {saved}; the same command goes on from there")
