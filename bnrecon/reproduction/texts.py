"""The text of a part: a Markdown file beside its module, with named numbers that Python computes.

The file ``theorem1.md`` beside ``theorem1.py``::

    ---
    where: Theorem 1, Lemma 7
    title: Random networks that compute a target's function
    ---
    The caption, of at most 60 words: what is shown, and under which conditions.

    Details, in as many paragraphs as they take; {names} stand for numbers here and above.

    ## Theorem 1
    = What it says in a line, for the list of findings | largest error {worst:.0e}
    The statement that the rows decide.
    > What it rests on: the largest error is {worst:.0e}.

    ## Remark 1 #width
    A second statement. Its name is what stands behind the #, else the place itself.
    > Evidence.

    ## #width, one size
    > Other evidence for the statement before, as where too little was computed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bnrecon.reproduction.experiment import Claim, Experiment

if TYPE_CHECKING:
    import pandas as pd

# By name of a claim its verdict, and the numbers that caption and evidence name; or one by one,
# each with numbers of its own: a claim's name, verdict and numbers. A name may come several times.
Decisions = (
    tuple[Mapping[str, bool | str], Mapping[str, Any]]
    | list[tuple[str, bool | str, Mapping[str, Any]]]
)
Decision = tuple[str, bool | str, Mapping[str, Any]]  # one of such a list
WORDS = {True: "confirmed", False: "contradicted"}


@dataclass(frozen=True)
class Statement:
    """A claim of the paper without its verdict; ``evidence`` names the numbers it rests on.

    ``finding`` is the claim in a line, and the one number that tells most: the line that begins
    with ``=``. A decision whose numbers have ``finding=False`` is not listed among the findings.
    """

    where: str
    statement: str
    evidence: str
    finding: str = ""

    def decide(self, verdict: bool | str, numbers: Mapping[str, Any]) -> Claim:
        """The claim with its verdict; ``True`` is *confirmed*, ``False`` *contradicted*.

        >>> claim = Statement("Theorem 1", "It holds.", "{n} of {n}.").decide(True, {"n": 3})
        >>> claim.verdict, claim.evidence
        ('confirmed', '3 of 3.')
        """
        word = verdict if isinstance(verdict, str) else WORDS[bool(verdict)]
        texts = (self.where, self.statement, self.evidence)
        where, statement, evidence = (_fill(text, numbers) for text in texts)
        listed = self.finding if numbers.get("finding", True) else ""
        short, _, number = _fill(listed, numbers).partition(" | ")
        return Claim(where, statement, word, evidence, short, number)


@dataclass(frozen=True)
class Text:
    """What a part's Markdown file says."""

    where: str  # the part's place in the paper
    title: str  # what is shown
    caption: str  # with ``{names}`` for numbers
    statements: Mapping[str, Statement]  # the claims by name, and sentences that a caption may have

    def sentence(self, name: str, **numbers: Any) -> str:
        """What stands below a heading that is no claim: a sentence that not all captions have."""
        return _fill(self.statements[name].statement, numbers)

    def claims(self, decisions: Decisions) -> list[Claim]:
        """The claims that are decided, in the order of the file or of the decisions' list.

        Raises:
            ValueError: a decision is about a claim that the file does not have.
        """
        if isinstance(decisions, list):
            return [self.claims(({name: word}, numbers))[0] for name, word, numbers in decisions]
        verdicts, numbers = decisions
        if unknown := verdicts.keys() - self.statements.keys():
            raise ValueError(f"{self.where}: its text has no claim named {sorted(unknown)}")
        return [
            statement.decide(verdicts[name], numbers)
            for name, statement in self.statements.items()
            if name in verdicts
        ]


def merge(*decisions: Decisions) -> tuple[dict[str, bool | str], dict[str, Any]]:
    """What was decided in pieces, together.

    >>> merge(({"Theorem 1": True}, {"n": 3}), ({"Theorem 2": "undecided"}, {}))
    ({'Theorem 1': True, 'Theorem 2': 'undecided'}, {'n': 3})
    """
    verdicts: dict[str, bool | str] = {}
    numbers: dict[str, Any] = {}
    for piece in decisions:
        if isinstance(piece, list):
            raise TypeError("decisions that come one by one are joined as lists are")
        verdicts |= piece[0]
        numbers |= piece[1]
    return verdicts, numbers


def read_text(module: str) -> Text:
    """The text beside a module, of which ``__file__`` is given.

    Raises:
        ValueError: the file has no place and title in front, or two claims of one name.
    """
    path = Path(module).with_suffix(".md")
    opening, *parts = path.read_text(encoding="utf-8").split("---\n", 2)
    if opening or len(parts) != 2:
        raise ValueError(f"{path}: it must begin with front matter between two lines of ---")
    caption, *sections = re.split(r"^## ", parts[1], flags=re.MULTILINE)
    statements = _statements(sections)
    if len(statements) < len(sections):
        raise ValueError(f"{path}: two claims have one name; write ## Place #name")
    try:
        place = yaml.safe_load(parts[0])
        return Text(place["where"], place["title"], _joined(caption), statements)
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: its front matter is not where: and title: ({error})") from error


def _statements(sections: Iterable[str]) -> dict[str, Statement]:
    statements: dict[str, Statement] = {}
    before = Statement("", "", "")
    for section in sections:
        heading, _, body = section.partition("\n")
        finding = ""
        if body.startswith("= "):
            finding, _, body = body.removeprefix("= ").partition("\n")
        statement, _, evidence = f"\n{body}".partition("\n>")
        where, _, name = f" {heading.strip()}".partition(" #")
        where = where.strip()
        words = _joined(statement) or before.statement
        before = Statement(where or before.where, words, _joined(evidence), finding)
        statements[name or where] = before
    return statements


def _fill(text: str, numbers: Mapping[str, Any]) -> str:
    """The text with its named numbers.

    Raises:
        ValueError: it names one that there is not.
    """
    try:
        return text.format(**numbers)
    except (KeyError, IndexError) as error:
        beginning = " ".join(text.split()[:6])
        raise ValueError(f"the text {beginning!r} ... names {error}, and no such number") from error


def _joined(text: str) -> str:
    """A paragraph on one line; those of a caption stay apart."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    lines = (" ".join(paragraph.replace("\n>", "\n").split()) for paragraph in paragraphs)
    return "\n\n".join(filter(None, lines))


def part(
    module: str,
    tasks: Callable,
    summary: Callable,
    draw: Callable | None = None,
    decide: Callable[[pd.DataFrame], Decisions] | None = None,
    numbers: Callable[[pd.DataFrame], Mapping[str, Any] | str] | None = None,
    **options: Any,
) -> Experiment:
    """An experiment whose place, title, caption and claims stand in the file beside its module.

    Args:
        module: its ``__file__``.
        tasks: as ``Experiment`` has it, like ``summary``, ``draw`` and ``options``.
        summary: of the rows.
        draw: of the rows.
        decide: the claims' verdicts by name, and the numbers that they and the caption name.
        numbers: those that the caption names, where they are not of ``decide``, or what stands
            instead of it while rows that it describes are missing.
        options: further fields of ``Experiment``.
    """
    text = read_text(module)
    caption: Any = text.caption
    if "{" in text.caption:
        compute = numbers or (lambda rows: merge(decide(rows))[1] if decide else {})

        def caption(rows: pd.DataFrame) -> str:
            named = compute(rows)
            return named if isinstance(named, str) else _fill(text.caption, named)

    claims = None if decide is None else lambda rows: text.claims(decide(rows))
    return Experiment(
        text.where, text.title, tasks, summary, caption, draw, claims=claims, **options
    )
