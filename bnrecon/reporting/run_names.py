"""A run by the beginning of its name, as a user types it. Nothing here loads torch."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path

from bnrecon.reporting.inventory import run_entry, subfolders
from bnrecon.runtime.errors import UserError, shorten

__all__ = ["find_run"]


def find_run(text: str, places: Sequence[Path]) -> Path:
    """The folder of a finished run.

    Args:
        text: the folder, or the beginning of its name or of the hash that its name ends in.
        places: outputs folders in which it may lie.

    Raises:
        UserError: there is none, there are several, or it is not finished.
    """
    given = Path(text)
    if given.name == "result.json":
        given = given.parent
    if text and _is_folder(given):
        return _require_finished(given)
    folders = {found.name: found for place in places for found in subfolders(place / "runs")}
    begun = [name for name in folders if name == text] or [
        name for name in folders if text and text in (name, *_beginnings(name, len(text)))
    ]
    if len(begun) == 1:
        return _require_finished(folders[begun[0]])
    if begun:
        raise UserError(f"{text}: which of {shorten(begun, 4)}? Give more of its name")
    where = ", ".join(str(place / "runs") for place in places)
    close = difflib.get_close_matches(text, folders, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UserError(f"{text[:200]!r}: no run in {where} begins so; {hint}see bnrecon ls runs")


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that no folder can have
        return False


def _beginnings(name: str, length: int) -> tuple[str, str]:
    return name[:length], name.rpartition("-")[2][:length]


def _require_finished(folder: Path) -> Path:
    entry = run_entry(folder)
    if entry.state == "finished":
        return folder
    if entry.state == "empty":
        raise UserError(f"{folder} is no run: it has no result.json; bnrecon ls lists runs")
    detail = f": {entry.detail}" if entry.detail else ""
    seeds = f", {entry.seeds_done} of {entry.seeds or '?'} seeds done"
    raise UserError(f"{folder} is {entry.state}{detail}{seeds}; rerun its command first")
