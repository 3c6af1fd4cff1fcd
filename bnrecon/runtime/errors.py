"""The exceptions that end a command early, each with its exit code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

LINE = 200  # characters of another library's message within ours
# How PyTorch, oneDNN, safetensors and the dynamic loader report a lack of memory.
OUT_OF_MEMORY = re.compile(
    "(out of|not enough) memory|(can't|cannot) allocate memory"
    "|could not create a primitive|failed to map segment",
    re.IGNORECASE,
)


class UserError(ValueError):
    r"""A user's mistake, in one line: what was given, what is allowed, what to do (exit code 2).

    >>> UserError("seed=[[1 2]\n [3 4]\n [5 6]]: must be a whole number")
    UserError('seed=[[1 2] ... [5 6]]: must be a whole number')
    """

    def __init__(self, message: str) -> None:
        lines = [line.strip() for line in str(message).strip().splitlines()]
        super().__init__(" ".join(lines if len(lines) < 3 else [lines[0], "...", lines[-1]]))


class RunError(RuntimeError):
    """A valid request that failed: diverged training, a singular system (exit code 1).

    ``reconstruction`` is what was rebuilt nevertheless, if anything.
    """

    reconstruction: object | None = None


class Diverged(RunError):
    """A training whose loss or outputs are no longer finite (exit code 1)."""


class ReportedElsewhere(RunError):
    """Raised where another process of the same training reports the error (exit code 1)."""


class Interrupted(RuntimeError):
    """Stopped by a signal or a time limit, with all progress saved (exit code 130)."""


CLEAR_ERRORS = (UserError, RunError, Interrupted)  # their messages say what is wrong


def first_line(error: BaseException) -> str:
    r"""The first line of an error's message, shortened, or its class name if it has none.

    >>> first_line(ValueError("first\nsecond.")), first_line(KeyError())
    ('first', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:LINE]


def lacks_memory(error: BaseException) -> bool:
    """Whether an error reports a lack of memory; libraries have no common class for it.

    >>> lacks_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    True
    """
    if isinstance(error, ValueError):  # of a user's code, whatever it says
        return False
    return isinstance(error, MemoryError) or OUT_OF_MEMORY.search(str(error)) is not None


def nearest(value: object, allowed: Iterable[str]) -> str:
    """List the allowed values, with a suggestion if one is close or abbreviated.

    >>> nearest("fig4", ["figure4_left", "figure5b"])
    "did you mean 'figure4_left'? Allowed: figure4_left, figure5b"
    >>> nearest("vg18", ["vgg18", "mlp"])
    "did you mean 'vgg18'? Allowed: mlp, vgg18"
    >>> nearest("lu_lbgfs", ["lu_lbfgs", "lu_lbfgs_defaults"])
    "did you mean 'lu_lbfgs'? Allowed: lu_lbfgs, lu_lbfgs_defaults"
    >>> nearest(18, ["vgg18", "mlp"])
    "did you mean 'vgg18'? Allowed: mlp, vgg18"
    """
    allowed = sorted(allowed)
    lower, word = {name.lower(): name for name in allowed}, str(value).lower()
    close = difflib.get_close_matches(word, lower, n=1, cutoff=0.5)
    if len(word) > 2:  # an abbreviation: a name has its letters in this order
        letters = re.compile(".*".join(map(re.escape, word)))
        typo = difflib.get_close_matches(word, lower, n=1, cutoff=0.8)
        close = typo or sorted(filter(letters.match, lower), key=len) or close
    hint = f"did you mean '{lower[close[0]]}'? " if close else ""
    return f"{hint}Allowed: {', '.join(allowed)}"


def require_choice(option: str, value: object, allowed: Collection[Any]) -> None:
    """Raise ``UserError`` for a value that is not allowed; ``option`` is written before it.

    >>> require_choice("family=", "vg18", ["vgg18", "mlp"])
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: family=vg18: did you mean 'vgg18'? Allowed: mlp, vgg18
    """
    if value not in allowed:
        raise UserError(f"{option}{value}: {nearest(value, map(str, allowed))}")


def printable(text: object) -> str:
    r"""Write a text, such as a path, on one line that any terminal can print.

    >>> print(printable("größe\n\x1b[2J"), printable(b"\xff".decode(errors="surrogateescape")))
    größe\n\x1b[2J \udcff
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))


def shorten(names: Sequence[str], most: int = 3) -> str:
    """The first few names, and the number of the others.

    >>> shorten(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
