"""Results as data frames, shipped or computed, with the paper's numbers."""

from __future__ import annotations

import importlib.metadata
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, overload

import pandas as pd

from bnrecon.reporting import tables
from bnrecon.reproduction import engine, request
from bnrecon.reproduction.parts import read_reported
from bnrecon.runtime.errors import UserError, require_choice
from bnrecon.runtime.shipped import shipped_folder
from bnrecon.studies import registry

LAST = ("version", "commit", "command")  # the last columns of every frame


@overload
def results(
    study: str, part: None = None, *, scale: str = "laptop", outputs: str | Path | None = None
) -> dict[str, pd.DataFrame]: ...


@overload
def results(
    study: str, part: str, *, scale: str = "laptop", outputs: str | Path | None = None
) -> pd.DataFrame: ...


def results(
    study: str, part: str | None = None, *, scale: str = "laptop", outputs: str | Path | None = None
) -> pd.DataFrame | dict[str, pd.DataFrame]:
    """Return a table's or figure's numbers as a data frame; without ``part``, all frames by name.

    A row is a run of the main job or a task's measurement. The columns are those of the CSV files
    (``docs/outputs.md``); columns ``reported_...`` hold the paper's numbers for the same row. Each
    row ends with the ``version`` of bnrecon that returned it, the ``commit`` that computed it
    (missing if nothing was computed) and the ``command`` that recomputes it.

    Args:
        study: the paper, as ``bnrecon ls`` names it.
        part: the table, figure or theorem.
        scale: ``"smoke"``, ``"laptop"`` or ``"paper"``.
        outputs: the folder with your results; by default the results shipped with bnrecon.

    Raises:
        UserError: the study, part, scale or folder does not exist.

    >>> table = results("burkholz2024", "width100")
    >>> print(table[["target", "reported_target", "reported_rebuilt_mean"]].to_string(index=False))
       target  reported_target  reported_rebuilt_mean
     CIFAR-10            94.94                  94.93
    CIFAR-100            73.34                  73.37
    """
    folder = shipped_folder() if outputs is None else Path(outputs)
    if not folder.is_dir():
        raise UserError(f"outputs={folder}: no such folder; give the folder that holds results")
    paper, frames = registry.find(study), {}
    if part is not None:
        require_choice("part=", part, paper.parts)
    words = [*([part] if part else []), f"scale={scale}", f"outputs={folder}"]
    for planned in engine.plan(paper, request.read(study, words)):
        frame = planned.part.numbers(planned.work)
        if "command" not in frame:
            frame["command"] = f"bnrecon study {study} {planned.name} scale={scale}"
        frame["version"] = importlib.metadata.version("bnrecon")
        frame = frame[[*(name for name in frame if name not in LAST), *LAST]]
        # As read from its CSV: numbers, text, missing values; an interval takes three columns.
        content = io.StringIO(tables.csv(frame))
        frames[planned.name] = pd.read_csv(content, keep_default_na=False, na_values=[""])
    return frames if part is None else frames[part]


def reported(study: str) -> pd.DataFrame:
    """Return the paper's numbers that bnrecon compares with, one per row.

    The columns are ``entry`` and ``name``, which identify the number; ``where`` it is in the paper;
    ``text``; ``value`` and ``half_width``, missing where the paper has words. The source is
    ``reported.yaml`` in the paper's folder of ``bnrecon/studies``.

    >>> print(reported("burkholz2024").iloc[4].to_string())
    entry                         table1
    name          rebuilt relu he_normal
    where                        Table 1
    text                     94.1 ± 0.08
    value                           94.1
    half_width                      0.08

    Raises:
        UserError: the study does not exist, or its paper prints only figures and theorems.
    """
    registry.find(study)
    try:
        entries = dict(read_reported(f"bnrecon.studies.{study}"))
    except FileNotFoundError:
        raise UserError(f"study={study}: no numbers of this paper are compared") from None
    where = entries.pop("where")
    rows = [
        {"entry": entry, "name": " ".join(name), "where": where[entry], "text": str(value)}
        for entry, content in entries.items()
        for name, value in _leaves(content)
    ]
    frame = pd.DataFrame(rows)
    numbers = frame["text"].str.extract(r"^(-?[\d.]+)(?: ± ([\d.]+).*)?$").astype(float)
    return frame.assign(value=numbers[0], half_width=numbers[1])


def _leaves(content: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The numbers of nested mappings and lists, by the keys that lead to them."""
    if isinstance(content, list):
        content = dict(enumerate(content))
    if not isinstance(content, dict):
        yield name, content
        return
    for key, value in content.items():
        yield from _leaves(value, (*name, str(key)))
