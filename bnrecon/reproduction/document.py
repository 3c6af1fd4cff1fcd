"""A study's results as one Markdown document: claims with their verdicts, tables, figures."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bnrecon.reproduction.experiment import VERDICTS, Claim
from bnrecon.reproduction.page import RULE, Claims
from bnrecon.reproduction.study import PartRequest, Study
from bnrecon.runtime import files

SCALE = "laptop"  # of parts that are not complete at the paper's size
LINK = "../../outputs"  # from a document
INTERVALS = (
    "Unless noted, ± is the half-width of a 95% Student-t interval over (n=) seeds or draws, "
    "(a to b) is such an interval of a geometric mean, and neither is corrected for multiple "
    "comparisons. A ± in print is the paper's."
)

LARGER = ", parts that say so at the paper's size by `scale=paper`"
READING = "## How to read the tables"  # of a summary: before the main parts
DETAILS = (
    "*Details*: whole tables, settings, origin. "
    "[Errata](../errata.md): errors in print. [Glossary](../glossary.md): terms."
)


def claims_by_part(study: Study, outputs: Path, scale: str) -> dict[str, list[Claim]]:
    """The claims that a study's finished results decide, by part in the paper's order.

    A part with complete results at the paper's size is judged by these. ``outputs`` holds ``runs``,
    and a folder named after the study with ``tasks``.

    Raises:
        Damaged: a result cannot be read.
    """
    folder, options = outputs / study.name, (f"outputs={outputs}",)
    claims: dict[str, list[Claim]] = {}
    for name in study.parts:
        part = study.part(name)
        chosen = shown_scale(study, outputs, name, scale)
        work = part.plan_work(PartRequest(name, chosen, options, folder, folder))
        for item in work:
            if (damage := item.damage()) is not None:
                raise files.Damaged(damage)
        claims[name] = list(part.decide_claims(work))
    return claims


def shown_scale(study: Study, outputs: Path, name: str, scale: str) -> str:
    """The scale at which a part is shown: "paper" if that is complete, else ``scale``."""
    page = _page(study, outputs, name, "paper")
    return "paper" if page.exists() and not _so_far(page) else scale


def document(study: Study, outputs: Path) -> str:
    """The document, made only from the tables ``outputs/NAME/PART-SCALE.md``, which it links to.

    It is Markdown: the study's summary, then for each part of the paper its claims, figure,
    caption, table and evidence. Details are on the part's page.
    """
    summary, *texts = study.summary.split("\n## ")
    sections = [f"## {text.strip()}" for text in texts]
    reading = [section for section in sections if section.startswith(READING)]
    command = f"bnrecon study {study.name} scale={SCALE}"
    papers = [name for name in study.parts if not study.part(name).where.startswith("beyond")]
    scales = {name: shown_scale(study, outputs, name, SCALE) for name in papers}
    larger = LARGER if "paper" in scales.values() else ""
    origin = f"Computed at *laptop scale*, sizes for two cores: `{command}`{larger}. {DETAILS}"
    cited = re.sub(r"(https://\S+)", r"<\1>.", study.citation)
    lines = [f"# {study.paper}: reproduction", *filter(None, [cited]), summary.strip(), origin]
    claims = {
        name: [claim for claim in decided if not claim.is_beyond]
        for name, decided in claims_by_part(study, outputs, SCALE).items()
    }
    if any(claims.values()):
        results = f"../results.md#{anchor(study.paper)}"
        lines.append(f"{INTERVALS} The main verdicts [in one line each]({results}).")
    run = [name for name in papers if _page(study, outputs, name, scales[name]).exists()]
    parts = {name: _part(study, outputs, name, scales[name], claims[name]) for name in run}
    lines += reading
    lines += [text for name in run if name in study.main for text in parts[name]]
    lines += [section for section in sections if section not in reading]
    lines += [text for name in run if name not in study.main for text in parts[name]]
    if missing := [name for name in papers if name not in run]:
        command = f"`bnrecon study {study.name} {' '.join(missing)} scale={SCALE}`"
        names = "; ".join(f"*{_heading(study, name)}*" for name in missing)
        lines += ["## Not run", f"{names}: {command}."]
    return "\n\n".join(lines) + "\n"


def _page(study: Study, outputs: Path, name: str, scale: str) -> Path:
    return outputs / study.name / f"{name}-{scale}.md"


def _part(
    study: Study, outputs: Path, name: str, scale: str, claims: Sequence[Claim]
) -> Iterator[str]:
    """The paragraphs of a part: those above the rule of its written page."""
    page = _page(study, outputs, name, scale)
    _, *paragraphs = page.read_text(encoding="utf-8").strip().split("\n\n")
    yield f"## {_heading(study, name)}"
    if scale == "paper":
        yield "At the paper's size (`scale=paper`)."
    so_far = _so_far(page)
    if so_far:
        rest = f"`bnrecon study {study.name} {name} scale={scale}` computes the others"
        yield f"{so_far}; {rest}."
    text = Claims(tuple(claims), bool(so_far)).markdown
    picture = f"{name}-{scale}.svg)"
    shown_here = paragraphs[: paragraphs.index(RULE.text)]
    for paragraph in sorted(shown_here, key=lambda paragraph: not _is_of_claims(paragraph)):
        if shown := text if _is_of_claims(paragraph) else paragraph:
            yield shown.replace(f"]({picture}", f"]({LINK}/{study.name}/{picture}")
    yield f"[Details]({LINK}/{study.name}/{page.name})"


def _so_far(page: Path) -> str:
    """How much of a part's written page is finished; empty if it is complete."""
    first, *_ = page.read_text(encoding="utf-8").split("\n\n")
    progress = re.search(r"(\d+) of (\d+) \w+ finished$", first)
    assert progress is not None, page
    return "" if progress[1] == progress[2] else progress[0]


def beyond(studies: Sequence[Study], outputs: Path) -> str:
    """The page of results beyond the papers, by part: all of it, or claims and a link to it."""
    lines = [
        "# Beyond the papers",
        "Claims of our own, on questions or settings that no paper has; the main ones [in one line "
        "each](../results.md#our-own-claims). A section or figure names the subject, not a claim "
        "of the paper. [Glossary](../glossary.md): terms.",
        INTERVALS,
    ]
    for study in studies:
        lines.append(f"## {study.paper}")
        for name, decided in claims_by_part(study, outputs, SCALE).items():
            chosen = shown_scale(study, outputs, name, SCALE)
            if study.part(name).where.startswith("beyond"):
                title, *rest = _part(study, outputs, name, chosen, decided)
                lines += [f"#{title}", *rest]
            elif ours := tuple(claim for claim in decided if claim.is_beyond):
                heading = _heading(study, name)
                link = f"[Table and figure]({study.name}.md#{anchor(heading)})"
                text = Claims(ours, bool(_so_far(_page(study, outputs, name, chosen)))).markdown
                lines += [f"### {heading}", text, f"{link}."]
    return "\n\n".join(lines) + "\n"


def finding_rows(
    study: Study, claims: Mapping[str, Sequence[Claim]], page: str, beyond: bool = False
) -> list[str]:
    """A line for each of ``claims_by_part`` whose text has one (``parts.Statement.finding``).

    The lines link to the parts of the paper's ``page``: claims of the paper, or ``beyond`` it.
    """
    return [
        f"| [{c.short}]({page}#{anchor(_heading(study, name))}) | {c.verdict} | {c.number} |"
        for name, decided in claims.items()
        for c in decided
        if c.short and c.is_beyond == beyond
    ]


def anchor(heading: str) -> str:
    """The link target of a heading.

    >>> anchor("Theorems 2.2, 2.3: Thresholds")
    'theorems-22-23-thresholds'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _heading(study: Study, name: str) -> str:
    part = study.part(name)
    return f"{part.where}: {part.title}"


def _is_of_claims(paragraph: str) -> bool:
    """Whether a paragraph of a written page comes from ``Claims``."""
    whole = paragraph.replace(" so far**: ", "**: ")
    return whole.startswith("- ") and any(f" **{v.capitalize()}**: " in whole for v in VERDICTS)
