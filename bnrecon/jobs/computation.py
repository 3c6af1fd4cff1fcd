"""The computation of one item of work in any process, and of several in this one."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

from bnrecon.jobs.work import Kind, Outcome, Started, Work
from bnrecon.runtime import locks
from bnrecon.runtime.errors import Interrupted, RunError, UserError, lacks_memory
from bnrecon.runtime.files import Damaged

details = logging.getLogger(__name__)  # goes only to a study's log

PACKAGES = ("run", "reconstruction", "targets", "solvers")  # whose progress goes to a study's log


def compute(
    item: Work, locks_folder: Path, log: Path | None, waiting: Callable[[], str] | None
) -> Outcome | None:
    """Compute one item of work, unless it has been done by now.

    ``locks_folder`` holds the locks that commands on one machine share; ``log`` is the file with
    the details, named in the outcome. While another command computes the item, ``waiting`` makes
    the message to log; without ``waiting`` the result is then ``None``.

    Raises:
        Interrupted: it was stopped; so does ``KeyboardInterrupt``.
    """
    started = time.monotonic()

    def outcome(kind: Kind, gist: str) -> Outcome:
        line = " ".join(gist.splitlines())
        seconds = time.monotonic() - started
        return Outcome(item.key, item.label, kind, line, seconds, "" if log is None else str(log))

    try:
        with locks.lock_work(item.key, locks_folder, waiting) as held:
            if not held:
                return None
            if item.is_finished():
                return outcome("done", "done elsewhere")
            details.info("%s: %s", item.label, item.command)
            gist = item.compute()
    except (Interrupted, KeyboardInterrupt):
        raise
    except UserError as error:
        details.error("%s failed: %s", item.label, error)
        return outcome("mistake", str(error))
    except Exception as error:  # no memory, a diverging training: the rest continues
        defect = not (isinstance(error, RunError | OSError | Damaged) or lacks_memory(error))
        details.error("%s failed: %s", item.label, error, exc_info=defect)
        return outcome("failed", str(error) or type(error).__name__)
    details.info("%s: %s", item.label, gist)
    return outcome("done", gist)


class _Details(logging.FileHandler):
    """A log that a full disk may truncate: writing the results reports that."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop what cannot be written."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)

    def close(self) -> None:
        """Close the file, which flushes it."""
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def details_to(log: Path | None) -> Iterator[None]:
    """Log the progress of ``PACKAGES`` to a file, if given, instead of the terminal."""
    if log is None:
        yield
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    handler = _Details(log, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    loggers = [details, *(logging.getLogger(f"bnrecon.{name}") for name in PACKAGES)]
    before = [(logger, logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, level, propagate in before:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
        handler.close()


class InProcess:
    """Computes in this process; another command on this machine may share work and locks.

    Without a ``log``, details are shown.
    """

    name = "this process"
    processes = 1

    def __init__(self, locks_folder: Path, log: Path | None) -> None:
        self._locks_folder, self._log = locks_folder, log

    def run(self, stages: Sequence[Sequence[Work]]) -> Generator[Started | Outcome, None, None]:
        """See ``Executor.run``; work that another command computes comes last."""
        remaining = [item for stage in stages for item in stage]
        with details_to(self._log):
            for waiting in (None, lambda: "waiting for another process that shares this work"):
                for item in list(remaining):
                    yield Started(item.key)
                    outcome = compute(item, self._locks_folder, self._log, waiting)
                    if outcome is not None:
                        remaining.remove(item)
                        yield outcome
