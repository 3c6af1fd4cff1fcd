"""The verdicts of a report: claims with what became of them, and runs beside the papers'."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bnrecon.reproduction.experiment import VERDICTS, Claim
from bnrecon.reproduction.page import Claims, Page
from bnrecon.reproduction.run_table import Cell
from bnrecon.reproduction.verdicts import against_target, counted

__all__ = ["Comparison", "Verdict", "claims_of", "comparison_of", "counts"]


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
    done = [(cell, cell.result) for cell in cells if cell.result is not None]
    if not done:
        return None
    return Comparison(
        page.heading.paper,
        anchor,
        f"{page.heading.part.where}: {page.heading.part.title}",
        f"{len(done)} of {len(cells)}",
        counted(
            against_target(result.loss, [seed.predictions for seed in result.seeds])
            for _, result in done
        ),
        counted(cell.against_paper for cell, _ in done),
    )
