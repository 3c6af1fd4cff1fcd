"""Which rows of a page come from the installed package, and what that means for the others."""

from __future__ import annotations

from collections.abc import Sequence

from bnrecon.reproduction.work import RunWork, TaskWork

__all__ = ["shipped_rows"]

WEIGHTS = " Trained weights are not in the package: a row's command trains its target if need be."


def shipped_rows(work: Sequence[RunWork | TaskWork]) -> str:
    """Which results were read from the installed package; empty where none was."""
    shipped = [item.label for item in work if item.is_shipped()]
    if not shipped:
        return ""
    own = [item.label for item in work if item.is_finished() and not item.is_shipped()]
    which = f"{len(shipped)} of {len(shipped) + len(own)} finished results"
    if not own:
        which = f"all {len(shipped)} finished results" if len(shipped) > 1 else "the result"
    elif len(own) < len(shipped):
        which += f", all but {'; '.join(own)}"
    else:
        which += f": {'; '.join(shipped)}"
    weights = WEIGHTS if isinstance(work[0], RunWork) else ""
    return f"Shipped with bnrecon, not computed here: {which}.{weights}"
