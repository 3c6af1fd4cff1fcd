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

from bnrecon.runtime import files, locks

E = TypeVar("E")

WRONG_CONTENT = (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError)


@dataclass(frozen=True)
class _Entry:
    """A folder."""

    name: str  # of the folder
    folder: Path  # the folder
    # ``finished`` of a run, ``trained`` of a target, ``computing``, ``unfinished``, ``damaged`` or
    # ``empty``
    state: str
    # Who computes it, what is wrong with it, or the file of weights a target was given
    detail: str = ""


@dataclass(frozen=True)
class RunEntry(_Entry):
    """A run's folder."""

    seeds: int | None = None  # number of seeds; ``None`` where that is not known
    seeds_done: int = 0  # how many of them have a result
    target_accuracy: float | None = None  # test accuracy of the target in percent
    loss: float | None = None  # what the sources lose of it, the mean over seeds
    shipped: bool = False  # whether the result is there alone, without a folder for each seed
    size: int = 0  # bytes of all files


@dataclass(frozen=True)
class TargetEntry(_Entry):
    """A target's folder."""

    accuracy: float | None = None  # test accuracy in percent
    images: int | None = None  # number of test images
    # Epochs that are behind the trained target or its checkpoint; ``None`` where it was given its
    # weights
    epochs_done: int | None = None
    # Epochs of the whole training; ``None`` where the checkpoint does not say, too
    epochs: int | None = None
    size: int = 0  # bytes of all files


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
        return sorted(path for path in folder.iterdir() if path.is_dir())
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
        return locks.holder(folder)
    except OSError:  # a folder that cannot be written: nobody can be seen at work there
        return None
    lock.release()
    return None


def _entry(kind: Callable[..., E], look: Callable[[Path], Mapping[str, Any]], folder: Path) -> E:
    """A folder's entry; one that cannot be read is damaged, with the reason."""
    try:
        content = look(folder)
    except OSError as error:
        content = {"state": "damaged", "detail": f"cannot be read ({error.strerror})"}
    return kind(name=folder.name, folder=folder, size=folder_size(folder), **content)


def _run(folder: Path) -> Mapping[str, Any]:
    seeds = [path for path in folder.glob("seed-*") if path.is_dir()]
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
    requested = None
    with contextlib.suppress(OSError, *WRONG_CONTENT):
        files.require_regular(folder / "config.json")
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        requested = len(config["seeds"])
    begun = any(folder.glob("config.json")) or bool(seeds)
    done = sum(
        files.read_if_valid(seed / "result.json", files.read_json) is not None for seed in seeds
    )
    return _unfinished(folder, damage, begun) | {"seeds": requested, "seeds_done": done}


def _unfinished(folder: Path, damage: str | None, begun: bool) -> dict[str, Any]:
    """The state of a folder without a valid result."""
    if (holder := lock_holder(folder)) is not None:
        return {"state": "computing", "detail": holder}
    if damage is not None:
        return {"state": "damaged", "detail": damage}
    return {"state": "unfinished" if begun else "empty"}


def _target(folder: Path) -> Mapping[str, Any]:
    try:
        content = files.read_json(folder / "target.json")
        config, weights = content["config"], content["config"]["target"].get("weights")
        trained = {"epochs_done": len(content["log"]), "epochs": int(config["train"]["epochs"])}
        _weights_metadata(folder / "target.safetensors")
        return {
            "state": "trained",
            "accuracy": float(content["accuracy"]),
            "images": int(content["images"]),
            **(trained if weights is None else {"detail": f"weights of {weights}"}),
        }
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
        damage, reached = _reason(folder, "checkpoint.safetensors", error), {}
    return _unfinished(folder, damage, begun=True) | reached


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
