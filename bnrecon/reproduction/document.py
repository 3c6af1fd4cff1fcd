"""A study's results as one Markdown document: claims with their verdicts, tables, figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from bnrecon.reproduction.experiment import VERDICTS, Claim
from bnrecon.reproduction.study import PartRequest, Study
from bnrecon.runtime import files

__all__ = ["claims_of", "document"]

INTERVALS = (
    "± is the half-width of a 95% Student-t interval, over seeds or draws where nothing else is "
    "said; that of a printed number is the paper's own."
)
BAR = r"\|"  # within a cell
LONG = 200  # characters of a paragraph that a page says once for all of its parts


def claims_of(study: Study, outputs: Path, scale: str) -> list[Claim]:
    """The claims that a study's finished results decide, in the order of its parts.

    Args:
        study: the paper.
        outputs: the folder that holds ``runs``, and a folder of the study's name with ``tasks``.
        scale: the scale of the results.

    Raises:
        Damaged: a result cannot be read.
    """
    folder, options = outputs / study.name, (f"outputs={outputs}",)
    claims: list[Claim] = []
    for name in study.parts:
        part = study.part(name)
        work = part.plan_work(PartRequest(name, scale, options, folder, folder))
        for item in work:
            if (damage := item.damage()) is not None:
                raise files.Damaged(damage)
        claims += part.decide_claims(work)
    return claims


def document(
    study: Study, outputs: Path, scale: str = "laptop", link: str = "../../outputs"
) -> str:
    """The document, made from the files of ``outputs`` alone.

    Args:
        study: the paper.
        outputs: the folder that holds the written tables, ``NAME/PART-SCALE.md`` and so on.
        scale: the scale of the results.
        link: the path to ``outputs`` as seen from the document.

    Returns:
        Markdown: the claims first, then how tables are read, then each part with its table and
        figure.
    """
    lines = [
        f"# {study.paper}",
        f"Results at scale {scale}, computed by `bnrecon study {study.name} scale={scale}`. This "
        "page is written from them by `python scripts/write_documents.py`; the errors found in "
        "print are in [the errata](../errata.md).",
    ]
    if claims := claims_of(study, outputs, scale):
        rows = [(claim.where, claim.statement, claim.verdict, claim.evidence) for claim in claims]
        table = ["| place | claim | verdict | evidence |", "|---|---|---|---|"]
        table += [f"| {' | '.join(cell.replace('|', BAR) for cell in row)} |" for row in rows]
        used = {claim.verdict for claim in claims}
        meanings = [f"- *{name}*: {text}" for name, text in VERDICTS.items() if name in used]
        lines += ["## Claims", INTERVALS, "\n".join(table), "\n".join(meanings)]
    pages = {name: _paragraphs(outputs / study.name / f"{name}-{scale}.md") for name in study.parts}
    if repeated := _repeated(pages.values()):
        lines += ["## How to read the tables", *repeated]
    for name, paragraphs in pages.items():
        part, command = study.part(name), f"`bnrecon study {study.name} {name} scale={scale}`"
        lines.append(f"## {part.where}: {part.title}")
        if not paragraphs:
            lines.append(f"Not run: {command}.")
            continue
        text = "\n\n".join(text for text in paragraphs[1:] if text not in repeated)
        progress = re.search(r"(\d+) of (\d+) \w+ finished$", paragraphs[0])
        if progress and progress[1] != progress[2]:
            lines.append(f"{progress[0]}; {command} computes the others.")
        picture = f"{name}-{scale}.svg)"
        lines.append(text.replace(f"]({picture}", f"]({link}/{study.name}/{picture}"))
    return "\n\n".join(lines) + "\n"


def _paragraphs(page: Path) -> list[str]:
    """A part's page but for its claims, which the table of all claims has; none if it is not run.

    The first one is the heading, which says how much is finished.
    """
    if not page.exists():
        return []
    claims = tuple(f" **{verdict.capitalize()}**: " for verdict in VERDICTS)
    paragraphs = page.read_text(encoding="utf-8").strip().split("\n\n")
    return [
        text
        for text in paragraphs
        if not (text.startswith("- ") and any(claim in text for claim in claims))
    ]


def _repeated(parts: Iterable[list[str]]) -> list[str]:
    """The explanations that several parts share, each once."""
    counts = Counter(text for paragraphs in parts for text in dict.fromkeys(paragraphs[1:]))
    return [
        text
        for text, times in counts.items()
        if times > 1 and len(text) > LONG and not text.startswith("|")
    ]
