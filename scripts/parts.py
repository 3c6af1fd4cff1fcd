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

__all__ = ["SIZE", "cut", "join", "missing", "receive"]

SIZE = 56 * 2**20  # bytes of a part: below 60 MB
BLOCK = 2**20


def cut(file: Path, into: Path, size: int = SIZE) -> dict[str, Any]:
    """Write a file's parts into a folder; return what describes them."""
    parts: list[dict[str, Any]] = []
    with file.open("rb") as source:
        while content := source.read(size):
            name = f"{file.name}.{len(parts):03d}"
            (into / name).write_bytes(content)
            digest = hashlib.sha256(content).hexdigest()
            parts.append({"name": name, "size": len(content), "sha256": digest})
    about = {"name": file.name, "size": file.stat().st_size, "sha256": _digest(file)}
    return about | {"parts": parts}


def receive(about: Mapping[str, Any], folder: Path, kept: Path) -> None:
    """Copy the parts that lie in ``folder`` to those that are kept.

    Raises:
        ValueError: naming a part that is damaged; the others are kept.
    """
    damaged = None
    for part in about["parts"]:
        arrived, place = folder / part["name"], kept / part["name"]
        if not arrived.is_file() or _is_whole(place, part):
            continue
        if not _is_whole(arrived, part):
            damaged = damaged or arrived
            continue
        kept.mkdir(parents=True, exist_ok=True)
        _copy([arrived], place)
    if damaged is not None:
        raise ValueError(f"{damaged} is damaged: its checksum is not that of pack.json; copy again")


def missing(about: Mapping[str, Any], kept: Path) -> list[str]:
    """The names of the parts that have not arrived."""
    return [part["name"] for part in about["parts"] if not _is_whole(kept / part["name"], part)]


def join(about: Mapping[str, Any], kept: Path, path: Path) -> None:
    """Join the parts, all of which have arrived, and remove them.

    Raises:
        ValueError: the whole is not what was cut.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    places = [kept / part["name"] for part in about["parts"]]
    _copy(places, path)
    if not _is_whole(path, about):
        path.unlink()
        raise ValueError(f"{path} is damaged: its checksum is not that of pack.json; copy again")
    for place in places:
        place.unlink()


def _copy(sources: Iterable[Path], path: Path) -> None:
    """Write files one behind the other into a new one, which is there as a whole or not at all."""
    unfinished = path.with_name(f"{path.name}.unfinished")
    with unfinished.open("wb") as target:
        for source in sources:
            with source.open("rb") as file:
                shutil.copyfileobj(file, target, BLOCK)
    os.replace(unfinished, path)


def _is_whole(path: Path, about: Mapping[str, Any]) -> bool:
    if not path.is_file() or path.stat().st_size != about["size"]:
        return False
    return _digest(path) == about["sha256"]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
