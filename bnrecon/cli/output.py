"""A command's two outputs: its product goes to standard output, log messages to standard error."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Iterator

__all__ = ["log_to_stderr", "tolerant_streams", "write"]


def write(text: str) -> None:
    """Write a command's product, a table or a folder's name, to standard output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def log_to_stderr(level: int = logging.INFO) -> Iterator[None]:
    """Show the messages of the package's loggers on standard error for the block.

    Nested blocks, as when a command calls another one, show every message once.
    """
    logger = logging.getLogger("bnrecon")
    if any(isinstance(handler, _StandardError) for handler in logger.handlers):
        yield
        return
    handler, before = _StandardError(), logger.level
    handler.setFormatter(_Formatter())
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


class _StandardError(logging.Handler):
    """Writes to what ``sys.stderr`` is at the time, above any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        line = self.format(record)
        if "tqdm" in sys.modules:  # without bars there is nothing to write above
            from tqdm import tqdm

            tqdm.write(line, file=sys.stderr)
        else:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


class _Formatter(logging.Formatter):
    """Progress as it is; what needs attention with the word that a terminal's user looks for."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = {logging.WARNING: "warning: ", logging.ERROR: "bnrecon: "}
        return prefix.get(record.levelno, "") + super().format(record)


@contextlib.contextmanager
def tolerant_streams() -> Iterator[None]:
    """Write characters that the terminal's encoding lacks as escapes, for the block."""
    streams = [
        (stream, stream.errors)
        for stream in (sys.stdout, sys.stderr)
        if isinstance(stream, io.TextIOWrapper)
    ]
    for stream, _ in streams:
        stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in streams:
            stream.reconfigure(errors=errors)
