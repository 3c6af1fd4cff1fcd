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
        lines += ["## Claims", INTERVALS, _claims_table(claims), _meanings(claims)]
    parts = {name: _paragraphs(outputs / study.name / f"{name}-{scale}.md") for name in study.parts}
    if repeated := _repeated(parts.values()):
        lines += ["## How to read the tables", *repeated]
    for name, paragraphs in parts.items():
        part = study.part(name)
        lines.append(f"## {part.where}: {part.title}")
        if not paragraphs:
            lines.append(f"Not run: `bnrecon study {study.name} {name} scale={scale}`.")
            continue
        text = "\n\n".join(text for text in paragraphs if text not in repeated)
        if (unfinished := _unfinished(outputs / study.name / f"{name}-{scale}.md")) is not None:
            rest = f"`bnrecon study {study.name} {name} scale={scale}` computes the others"
            lines.append(f"{unfinished}; {rest}.")
        picture = f"{name}-{scale}.svg)"
        lines.append(text.replace(f"]({picture}", f"]({link}/{study.name}/{picture}"))
    return "\n\n".join(lines) + "\n"


def _paragraphs(page: Path) -> list[str]:
    """A part's page without what the document says elsewhere; none where it is not run.

    Elsewhere are its first line (the heading) and its claims (the table of all claims).
    """
    if not page.exists():
        return []
    paragraphs = page.read_text(encoding="utf-8").strip().split("\n\n")[1:]
    return [text for text in paragraphs if not _is_of_claims(text)]


def _is_of_claims(paragraph: str) -> bool:
    """Whether a paragraph of a written page is one of ``Claims``."""
    return paragraph.startswith("- ") and any(
        f" **{verdict.capitalize()}**: " in paragraph for verdict in VERDICTS
    )


def _unfinished(page: Path) -> str | None:
    """How much of a part is finished, as its first line says; ``None`` if all of it is."""
    with page.open(encoding="utf-8") as lines:
        found = re.search(r"(\d+) of (\d+) \w+ finished$", next(lines).rstrip())
    assert found is not None, page
    return None if found[1] == found[2] else found[0]


def _repeated(parts: Iterable[list[str]]) -> list[str]:
    """The explanations that several parts share, each once."""
    found = Counter(text for paragraphs in parts for text in dict.fromkeys(paragraphs))
    return [
        text
        for text, times in found.items()
        if times > 1 and len(text) > LONG and not text.startswith("|")
    ]


def _claims_table(claims: list[Claim]) -> str:
    """One line per claim."""
    rows = ["| place | claim | verdict | evidence |", "|---|---|---|---|"]
    for claim in claims:
        cells = (claim.where, claim.statement, claim.verdict, claim.evidence)
        rows.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(rows)


def _meanings(claims: list[Claim]) -> str:
    """What the verdicts in the table mean."""
    used = {claim.verdict for claim in claims}
    return "\n".join(f"- *{name}*: {text}" for name, text in VERDICTS.items() if name in used)
