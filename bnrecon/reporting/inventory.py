"""What lies in an outputs folder: its runs and targets with their state. Nothing here loads torch.

A JSON file's digest is checked. Of weights only the header and the length of the file are: their
digest takes as long as reading all of them, which is done when they are used.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import filelock
from safetensors import SafetensorError, safe_open

from bnrecon.runtime import files

__all__ = [
    "RunEntry",
    "TargetEntry",
    "folder_size",
    "lock_holder",
    "run_entry",
    "runs",
    "subfolders",
    "targets",
]

E = TypeVar("E")

WRONG_CONTENT = (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError)


@dataclass(frozen=True)
class RunEntry:
    """A run's folder.

    Args:
        name: of the folder.
        folder: the folder.
        state: ``finished``, ``computing``, ``unfinished``, ``damaged`` or ``empty``.
        detail: who computes it, or what is wrong with it.
        seeds: number of seeds; ``None`` where that is not known.
        seeds_done: how many of them have a result.
        target_accuracy: test accuracy of the target in percent.
        loss: what the sources lose of it, the mean over seeds.
        shipped: whether the result is there alone, without a folder for each seed.
        size: bytes of all files.
    """

    name: str
    folder: Path
    state: str
    detail: str = ""
    seeds: int | None = None
    seeds_done: int = 0
    target_accuracy: float | None = None
    loss: float | None = None
    shipped: bool = False
    size: int = 0


@dataclass(frozen=True)
class TargetEntry:
    """A target's folder.

    Args:
        name: of the folder.
        folder: the folder.
        state: ``trained``, ``computing``, ``unfinished``, ``damaged`` or ``empty``.
        detail: who computes it, what is wrong with it, or the file of weights it was given.
        accuracy: test accuracy in percent.
        images: number of test images.
        epochs_done: epochs that are behind the trained target or its checkpoint; ``None`` where it
            was given its weights.
        epochs: epochs of the whole training; ``None`` where the checkpoint does not say, too.
        size: bytes of all files.
    """

    name: str
    folder: Path
    state: str
    detail: str = ""
    accuracy: float | None = None
    images: int | None = None
    epochs_done: int | None = None
    epochs: int | None = None
    size: int = 0


def runs(outputs: Path) -> list[RunEntry]:
    """The runs below an outputs folder, by name."""
    return [run_entry(folder) for folder in subfolders(outputs / "runs")]


def run_entry(folder: Path) -> RunEntry:
    """A folder as a run."""
    return _entry(RunEntry, _run, folder)


def targets(outputs: Path) -> list[TargetEntry]:
    """The targets below an outputs folder, by name."""
    return [_entry(TargetEntry, _target, folder) for folder in subfolders(outputs / "targets")]


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, by name; none where it does not exist.

    Raises:
        OSError: it cannot be read.
    """
    try:
        return sorted(place for place in folder.iterdir() if place.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def folder_size(folder: Path) -> int:
    """Bytes of all files below a folder; links are not followed."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # removed, or not readable
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.is_dir(follow_symlinks=False):
                    total += folder_size(Path(entry.path))
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    return total


def lock_holder(folder: Path) -> str | None:
    """Who holds a folder's lock, as far as it says; ``None`` where nobody does.

    The lock is taken for an instant where it is free; a process that wants it then waits for that.
    """
    path = folder / ".lock"
    if not path.exists():
        return None
    lock = filelock.FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        with contextlib.suppress(OSError, ValueError):
            return _text(folder / ".holder")[:100].strip() or "another process"
        return "another process"
    except OSError:  # a folder that cannot be written: nobody can be seen at work there
        return None
    lock.release()
    return None


def _entry(kind: Callable[..., E], look: Callable[[Path], Mapping[str, Any]], folder: Path) -> E:
    """A folder's entry; one that cannot be read is damaged, with the reason."""
    try:
        found = look(folder)
    except OSError as error:
        found = {"state": "damaged", "detail": f"cannot be read ({error.strerror})"}
    return kind(name=folder.name, folder=folder, size=folder_size(folder), **found)


def _run(folder: Path) -> Mapping[str, Any]:
    seeds = [place for place in folder.glob("seed-*") if place.is_dir()]
    try:
        content = files.read_json(folder / "result.json")
        accuracies, target = content["source"]["accuracy"], float(content["target"]["accuracy"])
        return {
            "state": "finished",
            "seeds": len(content["seeds"]),
            "seeds_done": len(content["seeds"]),
            "target_accuracy": target,
            "loss": target - math.fsum(accuracies) / len(accuracies),
            "shipped": not seeds,
        }
    except FileNotFoundError:
        damage = None
    except WRONG_CONTENT as error:
        damage = _reason(folder, "result.json", error)
    begun = any(folder.glob("config.json")) or bool(seeds)
    return _unfinished(folder, damage, begun) | {
        "seeds": _requested_seeds(folder),
        "seeds_done": sum(map(_has_result, seeds)),
    }


def _has_result(folder: Path) -> bool:
    with contextlib.suppress(OSError, *WRONG_CONTENT):
        return bool(files.read_json(folder / "result.json"))
    return False


def _unfinished(folder: Path, damage: str | None, begun: bool) -> dict[str, Any]:
    """The state of a folder without a valid result."""
    if (holder := lock_holder(folder)) is not None:
        return {"state": "computing", "detail": holder}
    if damage is not None:
        return {"state": "damaged", "detail": damage}
    return {"state": "unfinished" if begun else "empty"}


def _requested_seeds(folder: Path) -> int | None:
    """The number of seeds that an unfinished run is to have."""
    with contextlib.suppress(OSError, *WRONG_CONTENT):
        return len(json.loads(_text(folder / "config.json"))["seeds"])
    return None


def _target(folder: Path) -> Mapping[str, Any]:
    try:
        content = files.read_json(folder / "target.json")
        found: dict[str, Any] = {
            "accuracy": float(content["accuracy"]),
            "images": int(content["images"]),
        }
        config = content["config"]
        if (weights := config["target"].get("weights")) is None:
            found |= {
                "epochs_done": len(content["log"]),
                "epochs": int(config["train"]["epochs"]),
            }
        else:
            found["detail"] = f"weights of {weights}"
        _weights_metadata(folder / "target.safetensors")
        return {"state": "trained"} | found
    except FileNotFoundError as error:
        missing = Path(error.filename or "").name
        damage = f"{missing} is missing" if missing != "target.json" else None
    except WRONG_CONTENT as error:
        damage = _reason(folder, "its files", error)
    try:
        about = json.loads(_weights_metadata(folder / "checkpoint.safetensors")["about"])
        reached = {"epochs_done": len(about["log"]), "epochs": about.get("epochs")}
    except FileNotFoundError:
        return _unfinished(folder, damage, begun=False)
    except WRONG_CONTENT as error:
        damage = _reason(folder, "checkpoint.safetensors", error)
        return _unfinished(folder, damage, begun=True)
    return _unfinished(folder, damage, begun=True) | reached


def _text(path: Path) -> str:
    """A file's text; a pipe or a device, which might never end, is not opened."""
    files.require_regular(path)
    return path.read_text(encoding="utf-8")


def _weights_metadata(path: Path) -> Mapping[str, str]:
    """The metadata of a safetensors file, whose header has to fit its length."""
    files.require_regular(path)
    try:
        with safe_open(path, framework="np") as file:
            return file.metadata() or {}
    except SafetensorError:
        raise files.Damaged(f"{path} is cut off or overwritten") from None


def _reason(folder: Path, name: str, error: Exception) -> str:
    if isinstance(error, files.Damaged):
        return str(error).removeprefix(f"{folder}{os.sep}")
    return f"{name} of another version ({type(error).__name__})"
