"""Send finished runs and trainings of targets to trackers."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from pathlib import Path

from tqdm import tqdm

from bnrecon.config.schema import RunConfig
from bnrecon.reporting.result import RunResult
from bnrecon.reporting.trackers.adapters import make_trackers
from bnrecon.reporting.trackers.events import log_run, tracked_options
from bnrecon.reporting.wording import count_of
from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError, nearest
from bnrecon.runtime.tracking import Trackers
from bnrecon.targets.store import METADATA

logger = logging.getLogger(__name__)

FILES = {"runs": "result.json", "targets": "target.json"}


def find_finished(words: Iterable[str], outputs: Path) -> list[Path]:
    """The files of the finished runs and targets that words name, or all without words.

    Words are outputs folders, or their runs or targets, or names of these in ``outputs``.

    Raises:
        UserError: a word names nothing finished.
    """
    paths = [path for word in list(words) or [str(outputs)] for path in _named(word, outputs)]
    return list({path.resolve(): path for path in paths}.values())


def _named(word: str, outputs: Path) -> list[Path]:
    folders = [Path(word), *(outputs / kind / word for kind in FILES)]
    folder = next((folder for folder in folders if word and folder.exists()), None)
    if folder is None:
        names = [path.name for kind in FILES for path in (outputs / kind).glob("[!.]*")]
        hint = f"{nearest(word, names)}; " if 0 < len(names) <= 20 else ""
        raise UserError(
            f"{word!r}: no such folder, and no run or target in {outputs}; {hint}give an outputs "
            "folder, or the folder or name of a run or target"
        )
    if not folder.is_dir():
        raise UserError(f"{word}: a file; give the folder of a run or target, or an outputs folder")
    for pattern in ("{file}", "*/{file}", "{kind}/*/{file}"):
        patterns = [pattern.format(kind=kind, file=file) for kind, file in FILES.items()]
        paths = [path for each in patterns for path in files.find(folder, each)]
        # The results of a run's seeds have the same name.
        if paths := [path for path in paths if not re.fullmatch(r"seed-\d+", path.parent.name)]:
            return paths
    advice = f"make one with: bnrecon run outputs={word}"
    if (folder / "config.json").exists():
        advice = "it is an unfinished run; rerun its command first"
    raise UserError(f"{word}: no finished run or target in this folder; {advice}")


def export(paths: Iterable[Path], config: RunConfig) -> tuple[list[str], list[str]]:
    """Send runs and targets to the trackers of a configuration, replacing earlier ones.

    A file that cannot be read is reported and skipped. Files of an outputs folder go to its
    ``trackers``.

    Returns:
        Lines on what was sent and how to view it; and what went wrong.
    """
    counts, problems = dict.fromkeys(FILES, 0), []
    opened: dict[Path, Trackers] = {}
    for path in tqdm(list(paths), desc="exporting", disable=None):
        kind = next(kind for kind, file in FILES.items() if file == path.name)
        folder = config.tracking_folder
        if config.tracker_folder is None and path.parent.parent.name == kind:
            folder = path.parent.parent.parent / "trackers"
        if folder not in opened:
            names = tuple(config.tracker)
            opened[folder] = make_trackers(names, folder, config.tracker_project, whole=True)
        try:
            _send(kind, path, opened[folder])
            counts[kind] += not opened[folder].failed
        except (files.Damaged, FileNotFoundError) as error:
            problems.append(str(error))
            logger.warning("left out: %s", error)
        if opened[folder].failed:
            break
    for trackers in opened.values():
        problems += [f"{name} failed: {why}" for name, why in trackers.failed.items()]
    what = [count_of(counts["runs"], "run"), count_of(counts["targets"], "target")]
    sent = sum(trackers.sent for trackers in opened.values())
    views = [view for trackers in opened.values() for view in trackers.views]
    return [f"{' and '.join(what)}: {count_of(sent, 'row')} sent", *views], problems


def _send(kind: str, path: Path, trackers: Trackers) -> None:
    name = f"{kind}/{path.parent.name}"
    if kind == "runs":
        result = RunResult.read(path)
        with trackers.track(name, tracked_options(result.config)) as tracked:
            log_run(tracked, result)
        return
    metadata = files.read_json(path)
    if not set(metadata) >= METADATA:
        raise files.Damaged(f"{path} was written by another version of bnrecon")
    with trackers.track(name, metadata["config"]) as tracked:
        tracked.log_training(metadata)
