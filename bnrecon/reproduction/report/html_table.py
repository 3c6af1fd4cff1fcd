"""A table for a page: cells as printed, and the numbers by which they are sorted."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from bnrecon.reporting import tables
from bnrecon.reporting.statistics import Interval

WORDS, SENTENCES = 14, 60  # characters of a cell that is more than a word, or a sentence
# A number at the beginning of a cell, as in "99.17 ± 0.00 (n=3)", "1,024 of 4,096" or "> 1e16".
LEADING = re.compile(
    r"(?:[<>≤≥≈~] ?)?([+\-−]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][+-]?\d+)?)(?![\w.])"
)


@dataclass(frozen=True)
class Cell:
    """A cell's text, and its number if it has one."""

    text: str
    number: float | None

    @property
    def order(self) -> str:
        """The number, for the page's script."""
        return "" if self.number is None else repr(self.number).replace("inf", "Infinity")


@dataclass(frozen=True)
class Column:
    """A heading, whether its cells are sorted as numbers, and the length of the longest."""

    heading: str
    numeric: bool
    longest: int

    @property
    def kind(self) -> str:
        """Its width class."""
        if self.numeric or self.longest <= WORDS:
            return "short"
        return "words" if self.longest <= SENTENCES else "sentences"


@dataclass(frozen=True)
class HtmlTable:
    """A table by rows."""

    name: str  # its id on the page
    title: str  # its name for screen readers
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


def html_table(frame: pd.DataFrame, name: str, title: str, formats: tables.Formats) -> HtmlTable:
    """A frame as a table of a page.

    >>> table = html_table(pd.DataFrame({"loss": [Interval(0.25, 0.1, 3)]}), "t", "Losses", {})
    >>> table.rows[0][0]
    Cell(text='0.25 ± 0.10 (n=3)', number=0.25)
    """
    text = tables.as_text(frame, formats)
    columns, cells = [], []
    for heading in frame.columns:
        column = [
            Cell(shown, number_of(cell, shown))
            for cell, shown in zip(frame[heading], text[heading], strict=True)
        ]
        filled = [cell for cell in column if cell.text]
        numbers = sum(cell.number is not None for cell in filled)
        # A column of numbers may contain words, as "not run"; they come last in either order.
        longest = max((len(cell.text) for cell in filled), default=0)
        columns.append(Column(str(heading), 0 < len(filled) <= 2 * numbers, longest))
        cells.append(column)
    return HtmlTable(name, title, columns, list(zip(*cells, strict=True)))


def number_of(cell: Any, text: str) -> float | None:
    """The sort key of a cell: its number, an interval's mean, or the number it begins with.

    >>> number_of("1,024 of 4,096", "1,024 of 4,096"), number_of("3x3", "3x3")
    (1024.0, None)
    """
    if isinstance(cell, bool) or not text:
        return None
    if isinstance(cell, str):
        leading = LEADING.match(cell)
        digits = leading[1].replace(",", "").replace("−", "-") if leading else ""
        return float(digits) if re.search(r"\d", digits.partition("e")[0]) else None
    try:
        number = float(cell.mean if isinstance(cell, Interval) else cell)
    except (TypeError, ValueError):
        return None
    return None if math.isnan(number) else number
