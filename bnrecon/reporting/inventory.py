"""The runs and targets of an outputs folder, with their state. Nothing here loads torch.

The digests of JSON files are checked. For weights only the file's header and length are: checking
their digest means reading all of them, which is done when they are used.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError, safe_open

from bnrecon.runtime import files, locks
from bnrecon.runtime.errors import UserError, shorten

E = TypeVar("E")

WRONG_CONTENT = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError)


@dataclass(frozen=True)
class _Entry:
    """A folder."""

    name: str  # of the folder
    folder: Path  # the folder
    # ``finished`` of a run, ``trained`` of a target, ``computing``, ``unfinished``, ``damaged`` or
    # ``empty``
    state: str
    # Who computes it, what is wrong with it, or the file of a target's weights
    detail: str = ""


@dataclass(frozen=True)
class RunEntry(_Entry):
    """A run's folder."""

    seeds: int | None = None  # number of seeds; ``None`` if unknown
    seeds_done: int = 0  # how many of them have a result
    target_accuracy: float | None = None  # test accuracy of the target in percent
    loss: float | None = None  # target minus source accuracy, the mean over seeds
    shipped: bool = False  # whether there is only the result, without a folder for each seed
    size: int = 0  # bytes of all files


@dataclass(frozen=True)
class TargetEntry(_Entry):
    """A target's folder."""

    accuracy: float | None = None  # test accuracy in percent
    images: int | None = None  # number of test images
    # Finished epochs of the trained target or its checkpoint; ``None`` for weights from a file
    epochs_done: int | None = None
    epochs: int | None = None  # of the whole training; ``None`` likewise
    size: int = 0  # bytes of all files


def runs(outputs: Path) -> list[RunEntry]:
    """The runs below an outputs folder, by name."""
    return [_entry(RunEntry, _run, folder) for folder in subfolders(outputs / "runs")]


def find_run(text: str, roots: Sequence[Path]) -> Path:
    """The folder of a finished run, by its path or the beginning of its name or of its hash.

    Earlier roots come before later ones.

    Raises:
        UserError: there is none, there are several, or it is not finished.
    """
    named = Path(text)
    folder = named.parent if named.name == "result.json" else named
    if text and os.path.isdir(folder):  # false also for a name that no folder can have
        return _require_finished(folder)
    # Of two runs of one name the first root's counts: the user's, not the shipped one.
    folders = {path.name: path for root in reversed(roots) for path in subfolders(root / "runs")}
    begun = [name for name in folders if name == text] or [
        name
        for name in folders
        if text and (name.startswith(text) or name.rpartition("-")[2].startswith(text))
    ]
    if len(begun) == 1:
        return _require_finished(folders[begun[0]])
    if begun:
        raise UserError(f"{text}: which of {shorten(begun, 4)}? Give more of its name")
    where = ", ".join(str(root / "runs") for root in roots)
    close = difflib.get_close_matches(text, folders, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    raise UserError(f"{text[:200]!r}: no run in {where} begins so; {hint}see bnrecon ls runs")


def _require_finished(folder: Path) -> Path:
    entry = _entry(RunEntry, _run, folder)
    if entry.state == "finished":
        return folder
    if entry.state == "empty":
        raise UserError(f"{folder} is not a run: it has no result.json; bnrecon ls lists runs")
    detail = f": {entry.detail}" if entry.detail else ""
    seeds = f", {entry.seeds_done} of {entry.seeds or '?'} seeds done"
    raise UserError(f"{folder} is {entry.state}{detail}{seeds}; rerun its command first")


def targets(outputs: Path) -> list[TargetEntry]:
    """The targets below an outputs folder, by name."""
    return [_entry(TargetEntry, _target, folder) for folder in subfolders(outputs / "targets")]


def subfolders(folder: Path) -> list[Path]:
    """The folders in a folder, by name; none if it does not exist.

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
    for top, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):  # removed meanwhile
                total += os.lstat(os.path.join(top, name)).st_size
    return total


def lock_holder(folder: Path) -> str | None:
    """The recorded holder of a folder's lock; ``None`` if it is free.

    A free lock is taken for an instant, for which a process that wants it then waits.
    """
    if (folder / ".lock").exists():
        # Of a read-only folder no holder can be detected.
        with contextlib.suppress(UserError), locks.lock_file(folder / ".lock") as held:
            return None if held else locks.holder(folder)
    return None


def _entry(kind: Callable[..., E], read: Callable[[Path], Mapping[str, Any]], folder: Path) -> E:
    """A folder's entry; one that cannot be read is damaged, with the reason."""
    try:
        content = read(folder)
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
        reached = {"epochs_done": len(about["log"]), "epochs": about["epochs"]}
    except FileNotFoundError:
        return _unfinished(folder, damage, begun=False)
    except WRONG_CONTENT as error:
        damage, reached = _reason(folder, "checkpoint.safetensors", error), {}
    return _unfinished(folder, damage, begun=True) | reached


def _weights_metadata(path: Path) -> Mapping[str, str]:
    """The metadata of a safetensors file, after checking its header against its length."""
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
