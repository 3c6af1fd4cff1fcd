"""The progress of studies for another process, from their progress files and stored results."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from bnrecon.jobs.work import SWEEP
from bnrecon.reporting.inventory import folder_size, subfolders
from bnrecon.reproduction.study import SCALES

if TYPE_CHECKING:
    from bnrecon.jobs.record import State
    from bnrecon.reproduction.progress import Progress

CLOCKS = 5  # seconds by which two clocks of one machine may differ


@dataclass(frozen=True)
class StudyStatus:
    """A study at one scale, or a sweep, in one folder."""

    study: str  # its name
    scale: str  # the scale
    folder: Path  # the folder of its results
    shipped: bool  # whether it ships with bnrecon, and is only read
    # The last command's: ``running``, ``finished``, ``failed``, ``interrupted`` or ``killed``;
    # ``unclear`` if it ran on another machine and did not report its end; ``detached`` if cluster
    # jobs continue without it, ``results not collected`` if these have ended; ``damaged`` if its
    # progress file is; ``stored`` if there is none
    state: str
    # Number of the study's parts; ``None`` for an unknown study
    parts: int | None
    parts_begun: int  # how many of them have a result or a table
    # Number of stored finished tasks. Runs are stored elsewhere, and not counted.
    tasks: int
    set_aside: int  # number of damaged task files that were set aside
    progress: Progress | None  # of the last command, if recorded
    problem: str  # what is wrong with the progress file
    size: int  # bytes of all files, of all scales
    # Its submissions to a cluster, if this was asked (``with_jobs``)
    jobs: tuple[State, ...] = ()


def studies(
    outputs: Path, shipped: Path, parts_by_study: Mapping[str, Sequence[str]]
) -> list[StudyStatus]:
    """The studies with stored results, the user's first, by name and scale.

    ``parts_by_study`` are the parts of each existing study, by the study's name.
    """
    written = [(folder, False) for folder in subfolders(outputs / "studies")]
    read_only = [(shipped / name, True) for name in parts_by_study if (shipped / name).is_dir()]
    return [
        _status(folder, scale, is_shipped, parts_by_study.get(folder.name))
        for folder, is_shipped in (*written, *read_only)
        for scale in _scales(folder)
    ]


def sweeps(outputs: Path) -> list[StudyStatus]:
    """The sweeps with a progress file, by name."""
    folders = [folder for folder in subfolders(outputs / "sweeps") if any(_progress(folder, SWEEP))]
    return [_status(folder, SWEEP, False, None) for folder in folders]


def with_jobs(study: StudyStatus) -> StudyStatus:
    """Add the study's jobs, by asking the cluster."""
    if not (study.folder / "jobs").is_dir():
        return study
    from bnrecon.jobs import record

    jobs, state = record.states(study.folder, study.scale), study.state
    if state not in ("running", "unclear"):
        if any(job.queued or job.running for job in jobs):
            state = "detached"
        elif state in ("interrupted", "killed", "detached"):
            # Without submissions, they were cancelled.
            state = "results not collected" if jobs else state.replace("detached", "interrupted")
    return dataclasses.replace(study, jobs=tuple(jobs), state=state)


def _scales(folder: Path) -> list[str]:
    """The scales with stored results in a study's folder."""
    stems = {name.partition(".")[0] for name in (*_names(folder), *_names(folder / "tasks"))}
    return [scale for scale in SCALES if any(stem.endswith(f"-{scale}") for stem in stems)]


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [path.name for path in folder.iterdir()]
    return []


def _status(folder: Path, scale: str, shipped: bool, parts: Sequence[str] | None) -> StudyStatus:
    progress, problem = _progress(folder, scale)
    state = "damaged" if problem else "stored"
    if progress is not None:
        alive = {None: "unclear", True: "running", False: "killed"}
        state = progress.ended or alive[leader_is_alive(progress)]
    tasks = [name for name in _names(folder / "tasks") if name.endswith(f"-{scale}")]
    stored = [file for name in tasks for file in _names(folder / "tasks" / name)]
    begun = {name.removesuffix(f"-{scale}") for name in tasks}
    begun |= {part for part in parts or () if (folder / f"{part}-{scale}.csv").exists()}
    begun |= set(progress.seconds_by_part if progress else ())
    return StudyStatus(
        study=folder.name,
        scale=scale,
        folder=folder,
        shipped=shipped,
        state=state,
        parts=None if parts is None else len(parts),
        parts_begun=len(begun if parts is None else begun & set(parts)),
        tasks=sum(name.endswith(".json") for name in stored),
        set_aside=sum(".json.damaged" in name for name in stored),
        progress=progress,
        problem=problem,
        size=folder_size(folder),
    )


def _progress(folder: Path, scale: str) -> tuple[Progress | None, str]:
    """The last command's progress, or why it cannot be read."""
    path = folder / f"progress-{scale}.jsonl"
    if not os.path.lexists(path):
        return None, ""
    from bnrecon.reproduction import progress  # loads torch
    from bnrecon.runtime import files

    try:
        files.require_regular(path)
        return progress.read(path), ""
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"{path} cannot be read ({error.strerror})"
    except files.Damaged as error:
        return None, str(error)


def leader_is_alive(progress: Progress) -> bool | None:
    """Whether the leading process still runs; ``None`` if it is on another machine."""
    if progress.ended is not None:
        return False
    if progress.host != socket.gethostname():
        return None
    try:
        process = psutil.Process(progress.pid)
        # Another process may have the same number now.
        began = datetime.datetime.fromisoformat(progress.started).timestamp()
        began_before = process.create_time() <= began + CLOCKS
        return began_before and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, ValueError, OverflowError):
        return False
    except psutil.AccessDenied:
        return True


def seconds_since(moment: str) -> float:
    """Seconds from a moment (ISO 8601) until now; 0 if another machine's clock is ahead.

    >>> seconds_since("2024-07-21T12:00:00+00:00") > 0
    True
    """
    return max(0.0, time.time() - datetime.datetime.fromisoformat(moment).timestamp())


def latest(studies: Iterable[StudyStatus]) -> StudyStatus | None:
    """The study with the most recent progress, if any."""
    written = {study.progress.updated: study for study in studies if study.progress is not None}
    return written[max(written)] if written else None
