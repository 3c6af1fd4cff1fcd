"""What jobs have computed while nobody waited for them, taken note of by a later command."""

from __future__ import annotations

from collections.abc import Sequence

from bnrecon.jobs.computation import InProcess
from bnrecon.jobs.record import handing_out, submissions
from bnrecon.jobs.work import Batch, Outcome, Work
from bnrecon.reproduction import progress
from bnrecon.reproduction.shared_targets import with_targets

__all__ = ["collect_finished"]


def collect_finished(batch: Batch, work: Sequence[Work]) -> None:
    """Collect from a batch's jobs what is finished; with nothing left, its progress has ended.

    What failed of other work stays, for the command that asks for it.

    Args:
        batch: what the work is of.
        work: what was requested, of which nothing is missing.
    """
    if not submissions(batch.folder, batch.scale):
        return
    items = with_targets(work)
    outcomes: dict[str, Outcome] = {}
    with handing_out(batch.folder):
        for submission in submissions(batch.folder, batch.scale):
            outcomes |= (done := submission.done())
            submission.collect(done.keys() | items.keys() & set(submission.keys))
    if submissions(batch.folder, batch.scale):
        return
    computed = [items[key] for key in outcomes if key in items]
    with progress.keep(batch, InProcess(batch.claims, None), computed) as keeper:
        for item in computed:
            keeper.note(outcomes[item.key])
