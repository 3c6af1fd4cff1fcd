"""The verdicts of a report: claims with what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bnrecon.reproduction.experiment import VERDICTS, Claim
from bnrecon.reproduction.page import Claims, Page

__all__ = ["Verdict", "claims_of", "counts"]


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
