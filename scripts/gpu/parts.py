"""Files in parts that are small enough to be copied one by one, joined where they arrive.

A file is described by its name, size and SHA-256, and by those of its parts. A part that is not
what was cut is refused by name; what arrived whole is kept.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SIZE = 56 * 2**20  # bytes of a part: below 60 MB
DAMAGED = "is damaged: its checksum is not that of pack.json; copy again"


def cut(file: Path, into: Path, size: int = SIZE) -> dict[str, Any]:
    """Write a file's parts into a folder; return what describes them."""
    parts = []
    with file.open("rb") as source:
        while content := source.read(size):
            part = into / f"{file.name}.{len(parts):03d}"
            part.write_bytes(content)
            parts.append(_describe(part))
    return _describe(file) | {"parts": parts}


def receive(file: Mapping[str, Any], folder: Path, kept: Path) -> list[str]:
    """Keep the parts that lie in ``folder``; return the names of those that have not arrived.

    Raises:
        ValueError: naming a part that is damaged; the others are kept.
    """
    missing, damaged = [], []
    for part in file["parts"]:
        arrived = folder / part["name"]
        if is_whole(kept / part["name"], part):
            continue
        if is_whole(arrived, part):
            kept.mkdir(parents=True, exist_ok=True)
            _copy([arrived], kept / part["name"])
        else:
            (damaged if arrived.is_file() else missing).append(part["name"])
    if damaged:
        raise ValueError(f"{folder / damaged[0]} {DAMAGED}")
    return missing


def join(file: Mapping[str, Any], kept: Path, path: Path) -> None:
    """Join the parts, all of which have arrived, and remove them.

    Raises:
        ValueError: the whole is not what was cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sources = [kept / part["name"] for part in file["parts"]]
    _copy(sources, path)
    if not is_whole(path, file):
        path.unlink()
        raise ValueError(f"{path} {DAMAGED}")
    for source in sources:
        source.unlink()


def is_whole(path: Path, described: Mapping[str, Any]) -> bool:
    """Whether a file is the one that was described."""
    return path.is_file() and _describe(path)["sha256"] == described["sha256"]


def _describe(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "size": path.stat().st_size, "sha256": digest}


def _copy(sources: Iterable[Path], path: Path) -> None:
    """Write files one behind the other into a new one, which is there as a whole or not at all."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("wb") as target:
        for source in sources:
            with source.open("rb") as file:
                shutil.copyfileobj(file, target)
    os.replace(unfinished, path)
