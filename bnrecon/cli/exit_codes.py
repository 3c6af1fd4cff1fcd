"""From an exception to an exit code and one line.

0 done, 1 failed, 2 a mistake in the command, 130 interrupted, 141 output pipe closed.
"""

from __future__ import annotations

import errno
import logging
import os

from bnrecon.runtime.errors import Interrupted, ReportedElsewhere, RunError, UserError, lacks_memory

logger = logging.getLogger(__name__)

DONE, FAILED, MISTAKE, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 130, 141

CODES = {UserError: MISTAKE, RunError: FAILED, Interrupted: INTERRUPTED}

RESUMABLE = "what was finished is kept, rerun the command to resume"

# Errors that a user can fix by another option or a permission; a full disk is not one.
USER_ERRORS = (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError)
USER_NUMBERS = {errno.EROFS, errno.ENAMETOOLONG, errno.ELOOP}  # errors without a class


def report(error: BaseException) -> int:
    """Log one line about ``error`` and return the exit code; only a defect shows a traceback."""
    if isinstance(error, BrokenPipeError):
        drop_output(1, 2)
    code, line = describe(error)
    if line is None:
        return code
    logger.error(" ".join(line.split("\n")), exc_info=error if line == DEFECT else None)
    return code


DEFECT = "this is a defect in bnrecon; please report it with the lines below"


def describe(error: BaseException) -> tuple[int, str | None]:
    """The exit code of an exception and its line; ``None`` if nothing is to be printed.

    >>> describe(UserError("width=0: must be above 0"))
    (2, 'width=0: must be above 0')
    """
    if isinstance(error, ReportedElsewhere | BrokenPipeError):  # the pipe's reader has exited
        return BROKEN_PIPE if isinstance(error, BrokenPipeError) else FAILED, None
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, f"interrupted; {RESUMABLE}"
    if isinstance(error, SystemExit):  # a code without a message: --help was printed
        if isinstance(error.code, int):
            return error.code, None
        return FAILED, f"sys.exit({error.code!r}) was called while the command ran"
    for kind, code in CODES.items():
        if isinstance(error, kind):
            return code, str(error)
    libraries = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    if libraries & {"hydra", "omegaconf", "yaml"}:  # checked by name: they need not be loaded
        from bnrecon.config.explanation import explain

        return MISTAKE, explain(error)
    from bnrecon.runtime.files import Damaged  # imported late: it loads libraries

    if isinstance(error, Damaged):
        return FAILED, str(error)
    return _describe_machine(error)


def _describe_machine(error: BaseException) -> tuple[int, str]:
    """Describe a lack of memory, disk space or a permission; anything else is a defect."""
    if lacks_memory(error):
        reason = (str(error).splitlines() or ["an allocation failed"])[0]
        return FAILED, f"not enough memory ({reason}); use a smaller width or features=id_cond"
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where += f"; {RESUMABLE}"
        mistake = isinstance(error, USER_ERRORS) or error.errno in USER_NUMBERS
        return MISTAKE if mistake else FAILED, f"{error.strerror}{where}"
    return FAILED, DEFECT


def drop_output(*streams: int) -> None:
    """Discard further output to these file descriptors (1 by default).

    Python flushes its streams when it exits, and would fail again.
    """
    for stream in streams or (1,):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
