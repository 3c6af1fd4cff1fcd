"""Rows of text in columns, as wide as a terminal is; in a pipe nothing is cut."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from bnrecon.runtime.errors import printable

__all__ = ["Column", "layout", "line_width"]

GAP = "  "
SHORTEST = {"end": 10, "middle": 20}  # letters that a column keeps when it is shortened


@dataclass(frozen=True)
class Column:
    """A column of a listing.

    Args:
        title: its heading.
        right: whether numbers stand in it, which are aligned at the right.
        shorten: where text may be left out: ``"middle"`` (a name whose end tells), ``"end"``, or
            nowhere.
        optional: whether it may be left out where a line does not fit otherwise.
    """

    title: str
    right: bool = False
    shorten: str = ""
    optional: bool = False


def line_width() -> int | None:
    """The columns of the terminal that standard output is; ``None`` where it is none."""
    if not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def layout(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """Headings and rows, aligned. A column that is empty in all rows is left out.

    Where they are wider than ``width``, texts are shortened, first those that may be at their end;
    if that is not enough, optional columns are left out, from the last one on. What is too wide
    even then is left to the terminal to wrap.

    >>> columns = [Column("run", shorten="middle"), Column("loss", True), Column("size", True)]
    >>> print(layout(columns, [["digits-mlp-he_normal-0123456789", "0.25", "9 kB"]], 32))
    run                   loss  size
    digits-m…-0123456789  0.25  9 kB
    """
    used = [number for number in range(len(columns)) if any(row[number] for row in rows)]
    text = [
        (columns[number], [columns[number].title, *(printable(row[number]) for row in rows)])
        for number in used
    ]
    while width is not None and _least_width(text) > width:
        optional = [pair for pair in text if pair[0].optional]
        if not optional:
            break
        text.remove(optional[-1])
    widths = _fit(text, width)
    columns = [column for column, _ in text]
    lines = zip(*(cells for _, cells in text), strict=True)
    return "\n".join(_line(columns, line, widths) for line in lines)


_Text = list[tuple[Column, list[str]]]


def _least(column: Column, cells: Sequence[str]) -> int:
    longest = max(map(len, cells))
    return min(longest, max(SHORTEST.get(column.shorten, longest), len(column.title)))


def _least_width(text: _Text) -> int:
    return sum(_least(*pair) for pair in text) + len(GAP) * (len(text) - 1)


def _fit(text: _Text, width: int | None) -> list[int]:
    """The widths of columns so that a line fits, as far as they can be shortened."""
    found = [max(map(len, cells)) for _, cells in text]
    if width is None:
        return found
    excess = sum(found) + len(GAP) * (len(found) - 1) - width
    for where in ("end", "middle"):
        for number, (column, cells) in enumerate(text):
            if column.shorten == where and excess > 0:
                cut = min(excess, found[number] - _least(column, cells))
                found[number] -= cut
                excess -= cut
    return found


def _line(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    aligned = []
    for column, cell, width in zip(columns, cells, widths, strict=True):
        short = _shorten(cell, width, column.shorten)
        aligned.append(short.rjust(width) if column.right else short.ljust(width))
    return GAP.join(aligned).rstrip()


def _shorten(text: str, width: int, where: str) -> str:
    """Leave out letters.

    >>> _shorten("0123456789", 6, "middle"), _shorten("0123456789", 6, "end")
    ('0…6789', '01234…')
    """
    if len(text) <= width:
        return text
    if where == "end":
        return f"{text[: width - 1]}…"
    kept = min(width - 2, 11)  # a hyphen and the hash that a folder's name ends in
    return f"{text[: width - 1 - kept]}…{text[-kept:]}"
