"""A run by the beginning of its name, as a user types it. Nothing here loads torch."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Sequence
from pathlib import Path

from bnrecon.reporting.inventory import run_entry, subfolders
from bnrecon.runtime.errors import UserError, shorten


def find_run(text: str, places: Sequence[Path]) -> Path:
    """The folder of a finished run, by itself or by how its name, or the hash in it, begins.

    Raises:
        UserError: there is none, there are several, or it is not finished.
    """
    named = Path(text)
    folder = named.parent if named.name == "result.json" else named
    exists = False
    with contextlib.suppress(OSError, ValueError):  # a name that no folder can have
        exists = folder.is_dir()
    if text and exists:
        return _require_finished(folder)
    folders = {path.name: path for place in places for path in subfolders(place / "runs")}
    begun = [name for name in folders if name == text] or [
        name
        for name in folders
        if text and (name.startswith(text) or name.rpartition("-")[2].startswith(text))
    ]
    if len(begun) == 1:
        return _require_finished(folders[begun[0]])
    if begun:
        raise UserError(f"{text}: which of {shorten(begun, 4)}? Give more of its name")
    where = ", ".join(str(place / "runs") for place in places)
    close = difflib.get_close_matches(text, folders, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UserError(f"{text[:200]!r}: no run in {where} begins so; {hint}see bnrecon ls runs")


def _require_finished(folder: Path) -> Path:
    entry = run_entry(folder)
    if entry.state == "finished":
        return folder
    if entry.state == "empty":
        raise UserError(f"{folder} is no run: it has no result.json; bnrecon ls lists runs")
    detail = f": {entry.detail}" if entry.detail else ""
    seeds = f", {entry.seeds_done} of {entry.seeds or '?'} seeds done"
    raise UserError(f"{folder} is {entry.state}{detail}{seeds}; rerun its command first")
