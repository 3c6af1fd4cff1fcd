"""Rows of text in columns, as wide as a terminal is; in a pipe nothing is cut."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence

from bnrecon.runtime.errors import printable

GAP = "  "
SHORTEST = 20  # letters of a name that is shortened


def line_width() -> int | None:
    """The columns of the terminal that standard output is; ``None`` where it is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def layout(titles: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """Headings and rows, aligned: at the right below a title that begins with ``>``.

    A column that is empty in all rows is left out. Where a line is wider than ``width``, the first
    column is shortened in its middle, and what is too wide even then is cut at its end.

    >>> row = ["digits-mlp-he_normal-0123456789", "0.25", ""]
    >>> print(layout(["run", ">loss", ">size"], [row], 27))
    run                    loss
    digits-ml…-0123456789  0.25
    """
    lines = [[title.lstrip(">") for title in titles], *([*map(printable, row)] for row in rows)]
    used = [number for number in range(len(titles)) if any(row[number] for row in rows)]
    widths = {number: max(len(line[number]) for line in lines) for number in used}
    if width is not None:
        excess = sum(widths.values()) + len(GAP) * (len(used) - 1) - width
        widths[0] = min(widths[0], max(SHORTEST, widths[0] - excess))
    return "\n".join(_line(titles, line, widths, width) for line in lines)


def _line(
    titles: Sequence[str], cells: Sequence[str], widths: Mapping[int, int], width: int | None
) -> str:
    aligned = []
    for number, column in widths.items():
        cell = cells[number] if number else _shorten(cells[number], column)
        aligned.append(f"{cell:{'>' if titles[number].startswith('>') else '<'}{column}}")
    line = GAP.join(aligned).rstrip()
    return line if width is None or len(line) <= width else f"{line[: width - 1]}…"


def _shorten(name: str, width: int) -> str:
    """Leave letters out in the middle, and keep a hyphen and the hash that a name ends in.

    >>> _shorten("0123456789", 6)
    '0…6789'
    """
    kept = min(width - 2, 11)
    return name if len(name) <= width else f"{name[: width - 1 - kept]}…{name[-kept:]}"
