"""A command's two outputs: results go to standard output, log messages to standard error."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
from collections.abc import Iterator

# Characters that control a terminal or disguise text: C0 without tab and newline, DEL, C1, and
# marks that change the direction of writing.
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def write(text: str) -> None:
    """Write a command's result, such as a table or a folder's name, to standard output."""
    sys.stdout.write(f"{_without_controls(text)}\n")
    sys.stdout.flush()


@contextlib.contextmanager
def log_to_stderr(level: int = logging.INFO) -> Iterator[None]:
    """Show the messages of the package's loggers on standard error within the block."""
    logger = logging.getLogger("bnrecon")
    handler, before = _StandardError(), logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _without_controls(text: str) -> str:
    r"""Escape the control characters of a text, which may contain untrusted values.

    >>> print(_without_controls("größe\r\x1b[2J\x9b"))
    größe\r\x1b[2J\x9b
    """
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class _StandardError(logging.Handler):
    """Writes to the current ``sys.stderr``, above any progress bar.

    A message that cannot be written is dropped: no computation depends on it.
    """

    def emit(self, record: logging.LogRecord) -> None:
        prefix = {logging.WARNING: "warning: ", logging.ERROR: "bnrecon: "}
        line = _without_controls(prefix.get(record.levelno, "") + self.format(record))
        try:
            _write_line(line)
        except BrokenPipeError:  # the reader has exited, and so does the command
            raise
        except OSError:  # a full disk, a closed terminal
            pass


def _write_line(line: str) -> None:
    if "tqdm" in sys.modules:  # otherwise there are no progress bars
        from tqdm import tqdm

        tqdm.write(line, file=sys.stderr)
    else:
        sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def tolerant_streams() -> Iterator[None]:
    """Within the block, escape characters that the terminal's encoding lacks.

    A closed stream, as by ``>&-``, discards what is written.
    """
    with contextlib.ExitStack() as stack:
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            if stream is None:
                nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                setattr(sys, name, nowhere)
                stack.callback(setattr, sys, name, None)
            elif isinstance(stream, io.TextIOWrapper):
                stack.callback(stream.reconfigure, errors=stream.errors)
                stream.reconfigure(errors="backslashreplace")
        yield
