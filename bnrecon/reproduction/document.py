"""A study's results as one Markdown document: claims with their verdicts, tables, figures."""

from __future__ import annotations

from pathlib import Path

from bnrecon.reproduction.experiment import VERDICTS, Claim, Experiment
from bnrecon.reproduction.study import Study
from bnrecon.reproduction.task_store import TaskResult, concatenate

__all__ = ["claims_of", "document"]


def claims_of(study: Study, outputs: Path, scale: str) -> list[Claim]:
    """The claims that a study's finished experiments decide, in the order of its parts.

    Args:
        study: the paper.
        outputs: the folder that holds a folder of the study's name with its ``tasks``.
        scale: the scale of the results.
    """
    found: list[Claim] = []
    for name in study.parts:
        part = study.part(name)
        files = sorted((outputs / study.name / "tasks" / f"{name}-{scale}").glob("*.json"))
        if isinstance(part, Experiment) and part.claims is not None and files:
            found += part.claims(concatenate(TaskResult.read(file) for file in files))
    return found


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
        Markdown: the claims first, then each part with its table and figure.
    """
    lines = [
        f"# {study.paper}",
        f"Results at scale {scale}, computed by `bnrecon study {study.name} scale={scale}`. This "
        "page is written from them by `python scripts/write_documents.py`; the errors found in "
        "print are in [the errata](../errata.md).",
    ]
    if claims := claims_of(study, outputs, scale):
        lines += ["## Claims", _claims_table(claims), _meanings(claims)]
    for name in study.parts:
        part = study.part(name)
        lines.append(f"## {part.where}: {part.title}")
        stem = outputs / study.name / f"{name}-{scale}"
        if not stem.with_suffix(".md").exists():
            lines.append(f"Not run: `bnrecon study {study.name} {name} scale={scale}`.")
            continue
        text = stem.with_suffix(".md").read_text(encoding="utf-8").strip()
        text = text.partition("\n\n")[2]  # the heading above says what its first line says
        picture = f"]({stem.name}.svg)"
        lines.append(text.replace(picture, f"]({link}/{study.name}/{stem.name}.svg)"))
    return "\n\n".join(lines) + "\n"


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
