"""A part's page: its table as Markdown, CSV and LaTeX, and its figure, from what is finished."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from pathlib import Path

from bnrecon.reporting import figures as drawing
from bnrecon.reporting import tables
from bnrecon.reporting.latex import latex
from bnrecon.reproduction.engine import ExperimentPlan, TablePlan, plan
from bnrecon.reproduction.experiment import Claim, Experiment
from bnrecon.reproduction.options import result_options, stem_suffix
from bnrecon.reproduction.page import Heading, Page, device_name, listed
from bnrecon.reproduction.request import StudyRequest
from bnrecon.reproduction.run_page import run_page
from bnrecon.reproduction.study import Study
from bnrecon.reproduction.task_store import TaskResult, concatenate
from bnrecon.runtime import files

__all__ = ["figures", "write"]

logger = logging.getLogger(__name__)

KINDS = ("png", "svg")


def write(study: Study, request: StudyRequest, folder: Path | None = None) -> str:
    """Write the requested parts' files and return the pages as Markdown; nothing is computed.

    Args:
        study: the paper.
        request: its parts, scale and options.
        folder: where to write; the request's own folder by default.

    Raises:
        UserError: an impossible request.
    """
    folder = folder or request.folder
    files.remove_leftovers(folder)
    texts = []
    for planned in _all_solvers(study, request):
        try:
            page = _page(study, request, planned)
        except Exception as error:  # the other parts are shown all the same
            place = f"{folder / 'tasks' / _stem(planned, request)}"
            line = f"{planned.name} cannot be shown ({type(error).__name__}: {error}); see {place}"
            logger.exception("%s", line)
            page = Page(line)
        texts.append(page.text)
        if page.csv:
            _write_page(folder / _stem(planned, request), page)
    return "\n\n\n".join(texts)


def figures(study: Study, request: StudyRequest) -> list[Path]:
    """The figures of the requested parts that have been written."""
    paths = (
        request.folder / f"{_stem(planned, request)}.png"
        for planned in _all_solvers(study, request)
    )
    return [path for path in paths if path.exists()]


def _all_solvers(study: Study, request: StudyRequest) -> list[ExperimentPlan | TablePlan]:
    """The requested parts with the rows of all solvers: a table stands whole on its page."""
    names = [planned.name for planned in plan(study, request)]
    whole = StudyRequest(
        request.name, request.scale, tuple(names), request.options, request.outputs, request.jobs
    )
    return plan(study, whole)


def _options_of(planned: ExperimentPlan | TablePlan, request: StudyRequest) -> tuple[str, ...]:
    """The options that reach a part's runs: none where it has no runs."""
    takes = isinstance(planned, TablePlan) or planned.part.options is not None
    return request.options if takes else ()


def _stem(planned: ExperimentPlan | TablePlan, request: StudyRequest) -> str:
    return f"{planned.name}-{request.scale}{stem_suffix(_options_of(planned, request))}"


def _write_page(stem: Path, page: Page) -> None:
    files.write_text(stem.with_name(f"{stem.name}.md"), page.text + "\n")
    files.write_text(stem.with_name(f"{stem.name}.csv"), page.csv)
    files.write_text(stem.with_name(f"{stem.name}.tex"), page.latex)
    if page.figure is not None:
        for kind in KINDS:
            picture = drawing.image(page.figure, kind)
            files.write_bytes(stem.with_name(f"{stem.name}.{kind}"), picture)


def _page(study: Study, request: StudyRequest, planned: ExperimentPlan | TablePlan) -> Page:
    options = result_options(_options_of(planned, request))
    command = ("bnrecon", "study", study.name, planned.name, f"scale={request.scale}", *options)
    heading = Heading(
        study.name,
        study.paper,
        planned.part,
        request.scale,
        options,
        shlex.join(command),
        _stem(planned, request),
    )
    for work in planned.work:
        if (damage := work.damage()) is not None:
            logger.warning("%s; computed again by: %s", damage, heading.command)
    if isinstance(planned, TablePlan):
        return run_page(planned.part, heading, [work.cell() for work in planned.work])
    return _experiment_page(planned.part, heading, [work.result() for work in planned.work])


def _experiment_page(
    part: Experiment, heading: Heading, results: Sequence[TaskResult | None]
) -> Page:
    done = [result for result in results if result is not None]
    progress = f"{len(done)} of {len(results)} tasks finished"
    if not done:
        return Page(heading.page(progress, ["Not run."]))
    rows = concatenate(done)
    summary, caption = part.summary(rows), part.caption_for(rows)
    overrides = " ".join(part.options(heading.scale)) if part.options else ""
    body = [
        tables.markdown(summary, part.formats),
        caption,
        "\n".join(_claim_line(claim) for claim in part.claims(rows)) if part.claims else "",
        f"Trained with `{overrides}`." if overrides else "",
        _origin(done),
    ]
    names = [result.task for result in done for _ in result.rows]
    with drawing.style():
        figure = None if part.draw is None else part.draw(rows)
    title = f"{heading.title}; {progress}. {caption}"
    return Page(
        heading.page(progress, body, figure is not None),
        tables.csv(rows.assign(task=names)),
        latex(summary, part.formats, caption=title, label=heading.label),
        figure,
    )


def _origin(done: Sequence[TaskResult]) -> str:
    """Where the rows come from: commits, machines, time."""
    return (
        f"Commits {listed(result.commit for result in done)}; "
        f"{listed(device_name(result.machine) for result in done)}; "
        f"{sum(result.seconds for result in done):.0f} s of computing (trainings that were "
        "interrupted or already stored are not counted)."
    )


def _claim_line(claim: Claim) -> str:
    return f"- {claim.where}: {claim.statement} **{claim.verdict.capitalize()}**: {claim.evidence}"
