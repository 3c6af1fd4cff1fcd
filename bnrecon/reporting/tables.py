"""A frame of numbers as text: Markdown, CSV and columns for a terminal.

A frame's cells are numbers, words, ``Interval`` or ``None``. Only this module formats numbers: in
Markdown and LaTeX an interval is ``90.71 ± 0.02 (n=3)``; in CSV it is three columns. LaTeX is in
another module.
"""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pandas as pd

from bnrecon.reporting.statistics import Interval, without_negative_zero

Formats = Mapping[str, str]  # format specifications by column, as in {"residual": ".1e"}
AS_WRITTEN: Formats = MappingProxyType({})


def markdown(frame: pd.DataFrame, formats: Formats = AS_WRITTEN) -> str:
    """A frame as a Markdown table.

    >>> table = pd.DataFrame({"loss": [Interval(0.012, 0.001, 3)], "error": [2.31e-11]})
    >>> print(markdown(table, {"error": ".1e"}))
    | loss              | error   |
    |:------------------|:--------|
    | 0.01 ± 0.00 (n=3) | 2.3e-11 |
    """
    text = as_text(frame, formats).map(lambda cell: cell.replace("|", r"\|"))
    return text.to_markdown(index=False, disable_numparse=True)


def terminal(
    frame: pd.DataFrame, formats: Formats = AS_WRITTEN, wrap: Mapping[str, int] | None = None
) -> str:
    """A frame as columns for a terminal; cells of columns in ``wrap`` are wrapped.

    >>> table = pd.DataFrame({"features": ["he_normal (c1/n = 1.5)"], "loss": [0.25]})
    >>> print(terminal(table, {"loss": ".1f"}, wrap={"features": 12}))
    features      loss
    ------------  ----
    he_normal     0.2
    (c1/n = 1.5)
    """
    wrap = wrap or {}
    text = as_text(frame, formats)
    columns = [
        [textwrap.wrap(cell, wrap.get(name, 10**6)) or [""] for cell in (name, *text[name])]
        for name in text.columns
    ]
    widths = [max(len(line) for cell in column for line in cell) for column in columns]
    rows = [_terminal_row(cells, widths) for cells in zip(*columns, strict=True)]
    return "\n".join([rows[0], "  ".join("-" * width for width in widths), *rows[1:]])


def _terminal_row(cells: Sequence[list[str]], widths: Sequence[int]) -> str:
    lines = itertools.zip_longest(*cells, fillvalue="")
    return "\n".join(
        "  ".join(part.ljust(width) for part, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def csv(frame: pd.DataFrame) -> str:
    """A frame as CSV: numbers in full, names in snake_case, an interval in three columns.

    >>> print(csv(pd.DataFrame({"loss in %": [Interval(0.5, 0.1, 3), None]})), end="")
    loss_in_mean,loss_in_half_width,loss_in_n
    0.5,0.1,3
    ,,
    """
    columns: dict[str, Any] = {}
    for name in frame.columns:
        cells, snake = frame[name], snake_case(name)
        if any(isinstance(cell, Interval) for cell in cells):
            for part in ("mean", "half_width", "n"):
                values = [getattr(cell, part) if pd.notna(cell) else None for cell in cells]
                # Objects: with an empty cell, integers would become floats.
                columns[f"{snake}_{part}"] = pd.Series(values, dtype=object)
        else:
            columns[snake] = cells.reset_index(drop=True)
    return pd.DataFrame(columns).to_csv(index=False, lineterminator="\n")


def snake_case(name: str) -> str:
    """A heading as the name of a CSV column.

    >>> snake_case("max. logit difference")
    'max_logit_difference'
    """
    return re.sub(r"\W+", "_", name.lower()).strip("_")


def as_text(frame: pd.DataFrame, formats: Formats) -> pd.DataFrame:
    """The frame with every cell formatted by its column's format."""
    text = {
        name: [_write(cell, formats.get(name, "")) for cell in frame[name]]
        for name in frame.columns
    }
    return pd.DataFrame(text, columns=frame.columns, dtype=object)


def _write(cell: Any, spec: str) -> str:
    if pd.isna(cell):
        return ""
    if isinstance(cell, str | bool):
        return str(cell)
    return format(cell, without_negative_zero(spec))
