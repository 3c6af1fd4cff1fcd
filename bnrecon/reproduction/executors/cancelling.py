"""Ending the jobs that a study has given to a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bnrecon.reproduction.executors.queues import count_states
from bnrecon.reproduction.executors.submission import (
    JOBS,
    Submission,
    all_submissions,
    handing_out,
    state,
)

__all__ = ["Cancelled", "cancel"]


@dataclass(frozen=True)
class Cancelled:
    """A submission whose jobs were ended, and how far it was."""

    submission: Submission
    jobs: str  # number by state, in words
    finished: int
    total: int

    def text(self) -> str:
        """What a user is told."""
        numbers = ", ".join(self.submission.numbers)
        return (
            f"cancelled of {self.submission.study} scale={self.submission.scale}: {self.jobs} "
            f"(jobs {numbers}); {self.finished} of {self.total} tasks are computed, and stay"
        )


def cancel(study_folder: Path, scale: str | None = None) -> list[Cancelled]:
    """End the jobs of a study that wait or run; those that run stop at their next safe point.

    What they have finished stays, and what they have begun goes on from its checkpoint when the
    study is computed again.

    Args:
        study_folder: the study's folder.
        scale: of this scale only.

    Raises:
        UserError: the cluster cannot be asked from here.
        RunError: it does not answer.
    """
    if not (study_folder / JOBS).is_dir():
        return []
    with handing_out(study_folder):  # a command may be giving jobs just now
        chosen = [each for each in all_submissions(study_folder) if scale in (None, each.scale)]
        return [
            done for each in chosen if not each.cancelled and (done := _cancel(each)) is not None
        ]


def _cancel(submission: Submission) -> Cancelled | None:
    """End the jobs of one submission; ``None`` if all had ended."""
    keys = set(submission.keys)
    if submission.reports.ended(keys) == keys:
        return None
    queue = submission.queue()
    found = submission.recovered(queue)
    states = queue.states(found.jobs)
    alive = [job for job, where in states.items() if where != "ended"]
    if not alive:
        return None
    before = state(found)
    queue.cancel(_whole_arrays(alive) if submission.cluster == "slurm" else alive)
    dataclasses.replace(found, cancelled=True).write()
    return Cancelled(found, _jobs(states, alive), before.finished, len(keys))


def _jobs(states: dict[str, str], alive: Sequence[str]) -> str:
    return count_states(states[job] for job in alive)


def _whole_arrays(jobs: Sequence[str]) -> list[str]:
    """One number for all jobs of an array."""
    return list(dict.fromkeys(job.partition("_")[0] for job in jobs))
