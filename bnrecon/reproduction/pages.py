"""A part's page: its table as Markdown, CSV and LaTeX, and its figure, from what is finished."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from bnrecon.reporting import figures as drawing
from bnrecon.reporting import tables
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction import run_table
from bnrecon.reproduction.engine import ExperimentPlan, TablePlan, plan
from bnrecon.reproduction.experiment import Claim, Experiment
from bnrecon.reproduction.options import result_options, stem_suffix
from bnrecon.reproduction.request import StudyRequest
from bnrecon.reproduction.row_command import command_of
from bnrecon.reproduction.run_table import Cell, RunTable
from bnrecon.reproduction.study import Study
from bnrecon.reproduction.task_store import TaskResult, concatenate
from bnrecon.runtime import files

__all__ = ["Page", "figures", "write"]

logger = logging.getLogger(__name__)

COLUMNS = (
    "Accuracies are in percent, loss is target minus rebuilt, ± is the half-width of the 95% "
    "Student-t interval over source seeds. Layer errors are relative errors of the rebuilt "
    'weights. The images of "evaluated on" went through the real source network, the others '
    "through its collapsed form; max. logit difference is to the target, on those images."
)
VERDICT = (
    "The verdict asks whether the reproduced and the reported interval of the loss meet, the "
    "rounding of the printed accuracy allowed for."
)
KINDS = ("png", "svg")


@dataclass(frozen=True)
class Page:
    """What a part looks like for a reader; without ``csv`` nothing of it is finished."""

    text: str
    csv: str = ""
    latex: str = ""
    figure: Figure | None = None


@dataclass(frozen=True)
class _Heading:
    """How a page begins and ends."""

    paper: str
    part: Experiment | RunTable
    scale: str
    options: list[str]
    command: str

    def page(self, done: int, total: int, unit: str, body: Sequence[str]) -> str:
        """The text around a table."""
        options = "".join(f", {option}" for option in self.options)
        heading = (
            f"{self.paper}, {self.part.where}: {self.part.title}. "
            f"Scale {self.scale}{options}; {done} of {total} {unit} finished"
        )
        lines = [part for part in body if part]
        return "\n\n".join([heading, *lines, f"Command: `{self.command}`."])


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
    heading = _Heading(study.paper, planned.part, request.scale, options, shlex.join(command))
    for work in planned.work:
        if (damage := work.damage()) is not None:
            logger.warning("%s; computed again by: %s", damage, heading.command)
    if isinstance(planned, TablePlan):
        return _table_page(planned.part, heading, [work.cell() for work in planned.work])
    return _experiment_page(planned.part, heading, [work.result() for work in planned.work])


def _experiment_page(
    part: Experiment, heading: _Heading, results: Sequence[TaskResult | None]
) -> Page:
    done = [result for result in results if result is not None]
    if not done:
        return Page(heading.page(0, len(results), "tasks", ["Not run."]))
    rows = concatenate(done)
    summary = part.summary(rows)
    overrides = " ".join(part.options(heading.scale)) if part.options else ""
    origin = (
        f"Commits {_listed(result.commit for result in done)}; "
        f"{_listed(result.machine for result in done)}; "
        f"{sum(result.seconds for result in done):.0f} s without interrupted and stored trainings."
    )
    body = [
        tables.markdown(summary, part.formats),
        part.caption_for(rows),
        "\n".join(_claim_line(claim) for claim in part.claims(rows)) if part.claims else "",
        f"Trained with `{overrides}`." if overrides else "",
        origin,
    ]
    names = [result.task for result in done for _ in result.rows]
    with drawing.style():
        figure = None if part.draw is None else part.draw(rows)
    return Page(
        heading.page(len(done), len(results), "tasks", body),
        tables.csv(rows.assign(task=names)),
        tables.latex(summary, part.formats),
        figure,
    )


def _claim_line(claim: Claim) -> str:
    return f"- {claim.where}: {claim.statement} **{claim.verdict.capitalize()}**: {claim.evidence}"


def _table_page(part: RunTable, heading: _Heading, cells: Sequence[Cell]) -> Page:
    done = [cell for cell in cells if cell.result is not None]
    absolute = heading.scale == "paper"
    summary = run_table.summarize(cells, absolute)
    missing = [f"    {command_of(cell)}" for cell in cells if cell.result is None]
    body = [tables.markdown(summary, run_table.FORMATS), part.caption, COLUMNS]
    if any(cell.row.reported for cell in cells):
        smaller = "Accuracies themselves depend on the scale and are not compared."
        body.append(VERDICT if absolute else f"{VERDICT} {smaller}")
    if missing:
        body.append("Not run:\n\n" + "\n".join(missing))
    if not done:
        return Page(heading.page(0, len(cells), "runs", body))
    body += ["The CSV has the command of each row.", _origin([cell.result for cell in done])]
    with drawing.style():
        figure = None if part.draw is None else part.draw(done)
    return Page(
        heading.page(len(done), len(cells), "runs", body),
        tables.csv(run_table.numbers(cells, absolute)),
        tables.latex(summary, run_table.FORMATS),
        figure,
    )


def _origin(results: Sequence[RunResult | None]) -> str:
    """Where the numbers come from: commits, devices, data, time."""
    found = [result for result in results if result is not None]
    training = {result.target.folder: result.target.seconds for result in found}
    solving = sum(result.seconds for result in found)
    return (
        f"Commits {_listed(result.commit or 'installed' for result in found)}; "
        f"devices {_listed(result.device for result in found)}; "
        f"data {_listed(result.data.checksum[:12] for result in found)}; "
        f"{solving / 60:.0f} min solving and testing, "
        f"{sum(training.values()) / 60:.0f} min training."
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(set(names)))
