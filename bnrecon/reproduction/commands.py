"""`bnrecon study` without the command line: compute what is missing, write tables, draw."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bnrecon.config import checks, composition
from bnrecon.jobs import executors
from bnrecon.jobs.work import Detached, Executor
from bnrecon.reproduction import engine, pages
from bnrecon.reproduction.request import StudyRequest
from bnrecon.reproduction.study import Study
from bnrecon.reproduction.work import RunWork, TaskWork
from bnrecon.runtime import distributed, hardware
from bnrecon.runtime.errors import RunError, UserError


@dataclass(frozen=True)
class StudyOutcome:
    """The tables of finished results, as Markdown, and the error if something failed.

    If the command leaves the work to a cluster, the text says where the jobs are.
    """

    text: str
    error: RunError | UserError | OSError | None = None


def run_study(study: Study, request: StudyRequest) -> StudyOutcome:
    """Compute the missing results of the requested parts, write their tables and figures.

    Whatever stops it, the tables of finished results are written, and the same request continues
    from there. Processes with the same request share the tasks.

    Returns:
        The tables, and an error if tasks failed: ``UserError`` if all of them were mistakes in the
        request, ``RunError`` otherwise; the other tasks were computed. There is also an error if a
        file could not be written (``OSError``) or a part cannot be shown (``RunError``).

    Raises:
        UserError: an impossible request; nothing is computed.
        Interrupted: stopped by a signal.
    """
    distributed.refuse_torchrun("bnrecon study")
    parts = engine.plan(study, request)
    work = [work for part in parts for work in part.work]
    executor = _executor(request, work)
    folder = request.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)  # before anything is computed
    except OSError as refused:
        reason = "there is a file" if folder.is_file() else refused.strerror
        raise UserError(f"{folder} cannot be made ({reason}); give another outputs=") from None
    error: RunError | UserError | None = None
    try:
        engine.compute_missing(work, executor, request.batch)
    except Detached as detached:
        return StudyOutcome(str(detached))
    except (RunError, UserError) as failed:
        error = failed
    except BaseException:
        pages.write(study, request).warn_if_refused()
        raise
    written = pages.write(study, request)
    if error is None and written.unshown:
        error = RunError(f"not all parts can be shown: {', '.join(written.unshown)}")
    if error is not None:
        written.warn_if_refused()
    return StudyOutcome(written.text, error or written.refused)


def _executor(request: StudyRequest, work: Sequence[RunWork | TaskWork]) -> Executor:
    """The executor of a request; raises ``UserError`` for what this machine cannot do."""
    device, cluster = None, request.executor.cluster
    if cluster is None or cluster.name != "slurm":
        config = composition.compose(request.options)
        checks.check_machine(config)
        device = hardware.resolve_device(config.device)
    # The median time of each part's finished work decides how much a job gets.
    times: dict[str, list[float]] = {}
    for item in work:
        if (result := item.result()) is not None:
            times.setdefault(item.part, []).append(result.seconds)
    seconds = {part: statistics.median(each) for part, each in times.items()}
    return executors.choose(request.executor, request.batch, device, seconds)
