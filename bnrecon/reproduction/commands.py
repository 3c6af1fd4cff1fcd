"""The commands of a study, without the command line: run what is missing, write tables, draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bnrecon.config import checks, composition
from bnrecon.reproduction import engine, pages
from bnrecon.reproduction.executors import Executor, InProcess, LocalProcesses, bundles
from bnrecon.reproduction.executors.cluster import Cluster
from bnrecon.reproduction.executors.local_processes import require_room
from bnrecon.reproduction.outcome import Detached
from bnrecon.reproduction.request import StudyRequest
from bnrecon.reproduction.study import Study
from bnrecon.reproduction.work import Work
from bnrecon.runtime import distributed, hardware
from bnrecon.runtime.errors import RunError, UserError

__all__ = ["StudyOutcome", "figures_of", "run_study", "tables_of"]


@dataclass(frozen=True)
class StudyOutcome:
    """The tables of what is finished, as Markdown, and the error if tasks failed.

    Of a command that leaves the work to a cluster it is where the jobs are.
    """

    text: str
    error: RunError | UserError | None = None


def run_study(study: Study, request: StudyRequest) -> StudyOutcome:
    """Compute what the requested parts of a study lack, write their tables and figures.

    Whatever stops it, the tables of what is finished are written, and the same request continues
    from there. Several processes given the same request share the tasks.

    Returns:
        The tables, and an error where tasks failed: ``UserError`` if all of them were mistakes in
        the request, ``RunError`` otherwise. The other tasks were computed.

    Raises:
        UserError: an impossible request; nothing is computed.
        Interrupted: stopped from outside.
    """
    distributed.refuse_torchrun("bnrecon study")
    parts = engine.plan(study, request)
    by_jobs = request.cluster is not None
    records = engine.Records(request.folder, request.scale, request.command, by_jobs)
    work = [work for part in parts for work in part.work]
    executor = _executor(request, records, work)
    _make_folder(request.folder)  # before anything is computed
    error: RunError | UserError | None = None
    try:
        engine.compute_missing(work, executor, records)
    except Detached as left:
        return StudyOutcome(str(left))
    except (RunError, UserError) as failed:
        error = failed
    except BaseException:
        pages.write(study, request)
        raise
    return StudyOutcome(pages.write(study, request), error)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "there is a file" if folder.is_file() else error.strerror
        raise UserError(f"{folder} cannot be made ({reason}); give another outputs=") from None


def _executor(request: StudyRequest, records: engine.Records, work: Sequence[Work]) -> Executor:
    """Who computes what is requested; raises ``UserError`` for what this machine does not carry."""
    if request.cluster is not None and request.cluster.name == "slurm":
        return Cluster(request, request.cluster, bundles.known_seconds(work))
    config = composition.compose(request.options)
    checks.check_machine(config)
    device = hardware.resolve_device(config.device)
    require_room(request.jobs, device)
    if request.cluster is not None:
        return Cluster(request, request.cluster, {}, device)
    if request.jobs == 1:
        return InProcess(records.claims, records.log)
    return LocalProcesses(request.jobs, records.claims, records.log, device)


def tables_of(study: Study, request: StudyRequest) -> str:
    """Write the tables and figures of what is finished; return the tables as Markdown.

    Nothing is computed: what is missing stands there with the command that computes it. Damaged
    files are left out with a warning that names them.

    Raises:
        UserError: an impossible request.
    """
    if request.jobs > 1:
        raise UserError(
            f"jobs={request.jobs}: for bnrecon study only; tables and figures compute nothing"
        )
    if request.cluster is not None:
        word = request.cluster.words[0]
        raise UserError(f"{word}: for bnrecon study only; tables and figures compute nothing")
    return pages.write(study, request)


def figures_of(study: Study, request: StudyRequest) -> list[Path]:
    """Draw the figures of what is finished (and write its tables); return the figures' files.

    Raises:
        UserError: an impossible request.
    """
    tables_of(study, request)
    return pages.figures(study, request)
