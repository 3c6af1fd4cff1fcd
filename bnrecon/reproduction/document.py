"""A study's results as one Markdown document: claims with their verdicts, tables, figures."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bnrecon.reproduction.experiment import VERDICTS, Claim
from bnrecon.reproduction.study import PartRequest, Study
from bnrecon.runtime import files

__all__ = ["anchor", "claims_by_part", "document", "findings_table"]

INTERVALS = (
    "± is the half-width of a 95% Student-t interval, over seeds or draws where nothing else is "
    "said; that of a printed number is the paper's own."
)
LONG = 200  # characters of a paragraph that a page says once for all of its parts


def claims_by_part(study: Study, outputs: Path, scale: str) -> dict[str, list[Claim]]:
    """The claims that a study's finished results decide, by part in the paper's order.

    Args:
        study: the paper.
        outputs: the folder that holds ``runs``, and a folder of the study's name with ``tasks``.
        scale: the scale of the results.

    Raises:
        Damaged: a result cannot be read.
    """
    folder, options = outputs / study.name, (f"outputs={outputs}",)
    claims: dict[str, list[Claim]] = {}
    for name in study.parts:
        part = study.part(name)
        work = part.plan_work(PartRequest(name, scale, options, folder, folder))
        for item in work:
            if (damage := item.damage()) is not None:
                raise files.Damaged(damage)
        claims[name] = list(part.decide_claims(work))
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
        Markdown: the findings, how tables are read, then each part: figure, claims, tables.
    """
    lines = [
        f"# {study.paper}",
        f"Results at scale {scale}, computed by `bnrecon study {study.name} scale={scale}`. This "
        "page is written from them by `python scripts/write_documents.py`; the errors found in "
        "print are in [the errata](../errata.md).",
    ]
    claims = claims_by_part(study, outputs, scale)
    if any(claims.values()):
        lines += ["## Findings", findings_table(study, claims), INTERVALS, _verdicts(claims)]
    parts = {name: _paragraphs(outputs / study.name / f"{name}-{scale}.md") for name in study.parts}
    if repeated := _repeated(parts.values()):
        lines += ["## How to read the tables", *repeated]
    for name, paragraphs in parts.items():
        lines.append(f"## {_heading(study, name)}")
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


def findings_table(study: Study, claims: Mapping[str, Sequence[Claim]], page: str = "") -> str:
    """A line for each claim whose text has one (``texts.Statement.finding``).

    One that goes beyond the paper is marked as ours.

    Args:
        study: the paper.
        claims: from ``claims_by_part``.
        page: the paper's page as seen from the table, to whose parts the claims link.
    """
    rows = ["| claim | verdict | number |", "|---|---|---|"]
    for name, decided in claims.items():
        link = f"{page}#{anchor(_heading(study, name))}"
        rows += [
            f"| {'ours: ' * c.where.startswith('Beyond')}[{c.short}]({link}) | {c.verdict} | "
            f"{c.number} |"
            for c in decided
            if c.short
        ]
    return "\n".join(rows)


def anchor(heading: str) -> str:
    """What a heading is linked by.

    >>> anchor("Theorems 2.2, 2.3: Thresholds")
    'theorems-22-23-thresholds'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _heading(study: Study, name: str) -> str:
    part = study.part(name)
    return f"{part.where}: {part.title}"


def _paragraphs(page: Path) -> list[str]:
    """A part's page without its heading, picture and claims first; none where it is not run."""
    if not page.exists():
        return []
    paragraphs = page.read_text(encoding="utf-8").strip().split("\n\n")[1:]
    pictures = [text for text in paragraphs if text.startswith("![")]
    claims = [text for text in paragraphs if _is_of_claims(text)]
    return [*pictures, *claims, *(t for t in paragraphs if t not in (*pictures, *claims))]


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


def _verdicts(claims: Mapping[str, Sequence[Claim]]) -> str:
    """What the verdicts mean, and how many claims of the whole page have each."""
    counts = Counter(claim.verdict for decided in claims.values() for claim in decided)
    return "\n".join(
        f"- *{name}* ({counts[name]} of {counts.total()} claims on this page): {text}"
        for name, text in VERDICTS.items()
        if counts[name]
    )
