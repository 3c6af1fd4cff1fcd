"""Sending what was run before to a tracker: results of runs, and trainings of targets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from bnrecon.reporting.result import RunResult
from bnrecon.reporting.trackers.events import log_run, tracked_options
from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError, nearest
from bnrecon.runtime.tracking import Trackers
from bnrecon.targets.progress import log_training
from bnrecon.targets.store import METADATA

__all__ = ["Exported", "Finished", "export", "find_finished"]

logger = logging.getLogger(__name__)

FILES = {"runs": "result.json", "targets": "target.json"}


@dataclass(frozen=True)
class Finished:
    """A run or a target by its file, and the outputs folder that holds it, if one does."""

    kind: str  # runs or targets
    path: Path

    @property
    def name(self) -> str:
        """What trackers call it."""
        return f"{self.kind}/{self.path.parent.name}"

    @property
    def outputs(self) -> Path | None:
        """The outputs folder; ``None`` for a folder that was copied elsewhere."""
        above = self.path.parent.parent
        return above.parent if above.name == self.kind else None


@dataclass(frozen=True)
class Exported:
    """What an export has done: numbers of runs and targets, of entries, and what was left out."""

    runs: int
    targets: int
    added: int
    known: int
    problems: list[str]

    def text(self) -> str:
        """One line about what was sent."""
        sent = f"{_count(self.runs, 'run')} and {_count(self.targets, 'target')}"
        if not self.added:
            return f"{sent}: nothing new, all {self.known:,} entries were sent before"
        before = f", {self.known:,} were sent before" if self.known else ""
        return f"{sent}: {_count(self.added, 'entry', 'entries')} sent{before}"


def find_finished(words: Iterable[str], outputs: Path) -> list[Finished]:
    """The finished runs and targets that words name; all of ``outputs`` where there are no words.

    Args:
        words: outputs folders, or their runs or targets, or names of these in ``outputs``.
        outputs: the outputs folder.

    Raises:
        UserError: a word names nothing that is finished.
    """
    found: dict[Path, Finished] = {}
    for word in list(words) or [str(outputs)]:
        for item in _named(word, outputs):
            found[item.path.resolve()] = item
    return list(found.values())


def _named(word: str, outputs: Path) -> list[Finished]:
    places = [Path(word), *(outputs / kind / word for kind in FILES)]
    place = next((place for place in places if word and place.exists()), None)
    if place is None:
        names = [p.name for kind in FILES for p in (outputs / kind).glob("[!.]*")]
        hint = f"{nearest(word, names)}; " if 0 < len(names) <= 20 else ""
        raise UserError(
            f"{word!r}: no such folder, and no run or target in {outputs}; {hint}give an outputs "
            "folder, or the folder or name of a run or target"
        )
    if not place.is_dir():
        raise UserError(f"{word}: a file; give the folder of a run or target, or an outputs folder")
    for kind, name in FILES.items():
        if (place / name).exists() or (place / name).is_symlink():
            return [Finished(kind, place / name)]
    folders = [(kind, place if place.name == kind else place / kind) for kind in FILES]
    found = [Finished(kind, path) for kind, at in folders for path in _files(at, FILES[kind])]
    if not found:
        raise UserError(
            f"{word}: no finished run or target in this folder; make one with: "
            f"bnrecon run outputs={word}"
        )
    return found


def _files(folder: Path, name: str) -> Iterator[Path]:
    yield from sorted(folder.glob(f"*/{name}"))


def export(found: Iterable[Finished], trackers: Callable[[Finished], Trackers]) -> Exported:
    """Send runs and targets to trackers. A file that cannot be read is named and left out.

    Args:
        found: what to send.
        trackers: where each is sent to.
    """
    counts, problems, used = {"runs": 0, "targets": 0}, [], set()
    for item in tqdm(list(found), desc="exporting", disable=None):
        own = trackers(item)
        used.add(own)
        try:
            _send(item, own)
        except (files.Damaged, FileNotFoundError) as error:
            problems.append(str(error))
            logger.warning("left out: %s", error)
            continue
        if own.failed:
            break
        counts[item.kind] += 1
    problems += [f"{name} failed: {why}" for own in used for name, why in own.failed.items()]
    added, known = (sum(getattr(own, what) for own in used) for what in ("added", "known"))
    return Exported(counts["runs"], counts["targets"], added, known, problems)


def _send(item: Finished, trackers: Trackers) -> None:
    if item.kind == "runs":
        result = RunResult.read(item.path)
        with trackers.track(item.name, tracked_options(result.config)) as tracked:
            log_run(tracked, result)
        return
    about = files.read_json(item.path)
    if not set(about) >= METADATA:
        raise files.Damaged(f"{item.path} was written by another version of bnrecon")
    with trackers.track(item.name, about["config"]) as tracked:
        log_training(tracked, about)


def _count(number: int, what: str, several: str | None = None) -> str:
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"
