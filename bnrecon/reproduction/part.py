"""A part of a study as the engine sees it: its work, its page, and the claims that it decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from bnrecon.reproduction.experiment import Claim
    from bnrecon.reproduction.page import Heading, Page

__all__ = ["Part", "PartRequest"]

W = TypeVar("W", bound=Any)  # the part's kind of work


@dataclass(frozen=True)
class PartRequest:
    """What is requested of a part.

    Args:
        name: the part's.
        scale: smoke, laptop or paper.
        options: overrides that every run is given.
        folder: the study's own folder, which is written.
        shipped: the folder of what ships, which is read where the own one has nothing.
        threads: the ``threads`` option.
    """

    name: str
    scale: str
    options: Sequence[str]
    folder: Path
    shipped: Path
    threads: int | None = None


class Part(Protocol[W]):
    """A table or an experiment, bound to ``PART`` in one file of a paper's folder."""

    @property
    def where(self) -> str:
        """Where in the paper, as "Figure 2"."""

    @property
    def title(self) -> str:
        """What is shown."""

    @property
    def takes_options(self) -> bool:
        """Whether it has runs that the user's options reach."""

    def plan_work(self, request: PartRequest) -> Sequence[W]:
        """Its work; naming it costs nothing. Raises ``UserError`` for an impossible option."""

    def make_page(self, heading: Heading, work: Sequence[W]) -> Page:
        """What it looks like for a reader, from what is finished."""

    def decide_claims(self, work: Sequence[W]) -> Sequence[Claim]:
        """The statements of the paper that what is finished decides."""
