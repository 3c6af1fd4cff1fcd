"""The verdicts of a report: claims with what became of them, and runs beside the papers'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bnrecon.reproduction.experiment import VERDICTS, Claim
from bnrecon.reproduction.page import Claims, Page
from bnrecon.reproduction.run_table import Cell
from bnrecon.reproduction.verdicts import against_paper, against_target

__all__ = ["MEANINGS", "Comparison", "Verdict", "claims_of", "comparison_of", "counts"]

MEANINGS = {
    "confirmed": "What was computed agrees with the claim. That says nothing of other sizes, data "
    "or trainings.",
    "not confirmed": "What was computed speaks against the claim as it is stated, for the sizes, "
    "data and trainings that were computed.",
    "wrong in print": "The statement as it is printed fails in an example or contradicts a "
    "derivation. Where a repair is known, the evidence or an erratum names it; the paper's other "
    "statements may hold without it.",
    "open": "Not decided: the intervals allow for both answers, or too little was computed.",
}


@dataclass(frozen=True)
class Verdict:
    """A claim, and the part that decides it.

    Args:
        paper: the paper that it is about.
        study: the paper's name on the command line.
        anchor: the part's.
        claim: what is claimed, and what was found.
        so_far: how much of the part is finished, where that is not all of it.
    """

    paper: str
    study: str
    anchor: str
    claim: Claim
    so_far: str = ""

    @property
    def beyond(self) -> bool:
        """Whether it is a question of ours, which the paper does not claim: its place says so."""
        return self.claim.where.startswith("Beyond")


@dataclass(frozen=True)
class Comparison:
    """A table of runs: how often each verdict came out, against the targets and the paper."""

    paper: str
    anchor: str
    part: str
    runs: str
    target: str
    reported: str


def claims_of(page: Page, anchor: str) -> list[Verdict]:
    """The claims that a page decides."""
    heading = page.heading
    return [
        Verdict(heading.paper, heading.study, anchor, claim, page.progress if page.lacking else "")
        for block in page.blocks
        if isinstance(block, Claims)
        for claim in block.claims
    ]


def counts(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """How often each verdict came out, all four of them."""
    found = Counter(verdict.claim.verdict for verdict in verdicts)
    return {name: found[name] for name in VERDICTS}


def comparison_of(page: Page, anchor: str) -> Comparison | None:
    """The verdicts on the finished runs of a table; ``None`` where there are none."""
    cells = [cell for cell in page.results if isinstance(cell, Cell)]
    done = [(cell.row, cell.result) for cell in cells if cell.result is not None]
    if not done:
        return None
    return Comparison(
        page.heading.paper,
        anchor,
        f"{page.heading.part.where}: {page.heading.part.title}",
        f"{len(done)} of {len(cells)}",
        _counted(
            against_target(result.loss, [seed.predictions for seed in result.seeds])
            for _, result in done
        ),
        _counted(against_paper(result.loss, row.reported, row.possible) for row, result in done),
    )


def _counted(verdicts: Iterable[str]) -> str:
    """How often each verdict came out, the most frequent first.

    >>> _counted(["different", "cannot tell", "different"])
    '2 different, 1 cannot tell'
    """
    found = Counter(verdict for verdict in verdicts if verdict)
    return ", ".join(f"{count} {name}" for name, count in found.most_common())
