"""The contents of a report, gathered from finished results; nothing is computed."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import shlex
import urllib.parse
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from bnrecon.reporting import figures, run_tables
from bnrecon.reporting.result import read_all
from bnrecon.reporting.wording import count_of
from bnrecon.reproduction import pages
from bnrecon.reproduction.experiment import VERDICTS, Claim
from bnrecon.reproduction.page import Claims, FinishedRun, Page, Table, Text, device_name, listed
from bnrecon.reproduction.report import errata
from bnrecon.reproduction.report.html_table import HtmlTable, html_table
from bnrecon.reproduction.request import StudyRequest, result_options
from bnrecon.reproduction.study import SCALES, Study
from bnrecon.reproduction.task_store import TaskResult
from bnrecon.runtime import files
from bnrecon.runtime.shipped import shipped_outputs
from bnrecon.runtime.units import format_duration

logger = logging.getLogger(__name__)

PIXELS = 122  # per inch of a drawing: text of 8 points must be legible on a screen

DIGITS = 12  # shown of a checksum


def origin_of(one: TaskResult | FinishedRun) -> tuple[dict[str, str], str]:
    """The origin of a task or a run by heading, and the command for it, if it has its own."""
    if isinstance(one, TaskResult):
        cells = {"task": one.task, "commit": one.commit, "device": device_name(one.machine)}
        return cells | {"seconds": f"{one.seconds:.1f}", "key": one.key}, ""
    result = one.result
    return {
        "row": one.name,
        "run": one.folder,
        "commit": result.commit or "installed",
        "device": device_name(result.device),
        "data": result.data.checksum[:DIGITS],
        "weights": (result.target.checksum or "")[:DIGITS],
        "seeds": ", ".join(str(seed.seed) for seed in result.seeds),
        "seconds": f"{result.seconds:.1f}",
        "training": f"{result.target.seconds:.0f}",
    }, one.command


def summary_of(pages: Sequence[Page]) -> list[tuple[str, str]]:
    """What the results of a paper share and what they vary, as terms with values."""
    results = [result for page in pages for result in page.results]
    tasks = [result for result in results if isinstance(result, TaskResult)]
    folders = {one.folder: one.result for one in results if isinstance(one, FinishedRun)}
    runs = list(folders.values())
    training = {run.target.folder: run.target.seconds for run in runs}
    computing = [*(task.seconds for task in tasks), *(run.seconds for run in runs)]
    seconds = math.fsum([*computing, *training.values()])  # a shared training counts once
    counts = {"task": len(tasks), "run": len(runs)}
    machines = (*(task.machine for task in tasks), *(run.device for run in runs))
    versions = {", ".join(f"{name} {v}" for name, v in run.versions.items()) for run in runs}
    images = {f"{run.data.name} {run.data.checksum}" for run in runs}
    terms = {
        "results": " and ".join(count_of(n, name) for name, n in counts.items() if n),
        "commits": listed([*(t.commit for t in tasks), *(r.commit or "installed" for r in runs)]),
        "devices": listed(map(device_name, machines)),
        "versions": "; ".join(sorted(versions)),
        "images (SHA-256)": "; ".join(sorted(images)),
        "seeds of the sources": listed(str(seed.seed) for run in runs for seed in run.seeds),
        "time": format_duration(seconds) if seconds else "",
    }
    return [(term, value) for term, value in terms.items() if value]


@dataclass(frozen=True)
class Verdict:
    """A claim, and the part that decides it."""

    paper: str  # the claim's paper
    study: str  # the paper's name on the command line
    anchor: str  # the part's
    claim: Claim  # the claim and its verdict
    so_far: str = ""  # how much of the part is finished, if it is incomplete


@dataclass(frozen=True)
class Part:
    """A table or experiment as shown."""

    anchor: str  # its id on the page
    page: Page  # its content
    figure: Markup | None  # its embedded picture
    blocks: Sequence[tuple[str, Any]]  # type and content of what is below the title, in order
    readings: Sequence[Markup]  # how to read its tables
    origin: str  # the origin of the numbers, in a sentence
    origins: Sequence[tuple[dict[str, str], str]]  # of each task or run
    verdicts: Sequence[Verdict]  # the claims that it decides
    others: Sequence[str]  # scales that also have tables of it

    @property
    def incomplete(self) -> bool:
        """Whether something is not finished, or cannot be shown."""
        return bool(self.page.lacking or self.page.problem)


@dataclass(frozen=True)
class Paper:
    """A study and its parts."""

    study: Study
    command: str
    parts: Sequence[Part]
    origins: Sequence[tuple[str, str]]

    @property
    def verdicts(self) -> list[Verdict]:
        """The claims that its finished parts decide."""
        return [verdict for part in self.parts for verdict in part.verdicts]


@dataclass(frozen=True)
class Runs:
    """All finished runs of a folder, and the problems of those that cannot be read."""

    table: HtmlTable | None
    count: int
    caption: str
    problems: Sequence[str]


@dataclass(frozen=True)
class Report:
    """A whole report."""

    scale: str
    options: Sequence[str]
    papers: Sequence[Paper]
    runs: Runs
    errata: errata.Errata

    @property
    def verdicts(self) -> list[Verdict]:
        """The claims of all papers."""
        return [verdict for paper in self.papers for verdict in paper.verdicts]

    @property
    def parts(self) -> list[Part]:
        """The parts of all papers."""
        return [part for paper in self.papers for part in paper.parts]


def gather(requests: Sequence[tuple[Study, StudyRequest]]) -> Report:
    """Read the finished results of studies, of one scale, options and outputs; draw their figures.

    Raises:
        UserError: an impossible request.
    """
    path = Path(__file__).parents[3] / "docs" / "errata.md"  # of a checkout
    corrections = errata.read_errata(path.read_text("utf-8")) if path.is_file() else errata.Errata()
    papers = []
    for study, request in requests:
        logger.info("%s: %d parts", study.name, len(study.parts))
        render = functools.partial(_part, request, corrections.anchors)
        parts = list(pages.read(study, request, render))
        origins = summary_of([part.page for part in parts])
        # A command for any machine: without folders of this one.
        options = result_options(request.options)
        command = ("bnrecon", "study", request.name, f"scale={request.scale}", *options)
        papers.append(Paper(study, shlex.join(command), parts, origins))
    first = requests[0][1]
    runs, options = _read_runs(first.outputs), result_options(first.options)
    return Report(first.scale, options, papers, runs, corrections)


def _part(request: StudyRequest, anchors: dict[str, str], page: Page) -> Part:
    # The report's recipients do not need this machine's folders.
    page = dataclasses.replace(page, problem=page.problem.replace(f"{request.outputs}/", ""))
    anchor = f"{page.heading.study}-{page.heading.name}"
    blocks, readings = _blocks(page, anchor, anchors)
    return Part(
        anchor,
        page,
        _picture(page),
        blocks,
        readings,
        " ".join(_texts(page, "origin")),
        [origin_of(result) for result in page.results],
        _verdicts(page, anchor),
        [scale for scale in SCALES if scale != request.scale and _has_table(request, page, scale)],
    )


def _has_table(request: StudyRequest, page: Page, scale: str) -> bool:
    name = f"{page.heading.name}-{scale}.csv"
    return any((folder / name).is_file() for folder in (request.folder, request.shipped))


def _picture(page: Page) -> Markup | None:
    """The figure as an embedded file, so that its ids and styles are separate."""
    if page.draw is None:
        return None
    figure = figures.drawn(page.draw, page.heading.command)
    part, image = page.heading.part, figures.image(figure, "svg")
    caption = " ".join(map(errata.plain, _texts(page, "")))
    return Markup('<img src="data:image/svg+xml,{}" width="{:.0f}" alt="{}">').format(
        urllib.parse.quote(image, safe=" =/:;,()"),
        figure.get_figwidth() * PIXELS,
        f"{part.where}: {part.title}. {caption}",
    )


def _texts(page: Page, kind: str) -> list[str]:
    return [block.text for block in page.blocks if isinstance(block, Text) and block.kind == kind]


def _verdicts(page: Page, anchor: str) -> list[Verdict]:
    """The verdicts of a page."""
    heading, so_far = page.heading, page.progress if page.lacking else ""
    claims = [claim for one in page.blocks if isinstance(one, Claims) for claim in one.claims]
    return [Verdict(heading.paper, heading.study, anchor, claim, so_far) for claim in claims]


def count_verdicts(verdicts: Iterable[Verdict]) -> dict[str, int]:
    """The number of times that each of all verdicts occurs."""
    counts = Counter(verdict.claim.verdict for verdict in verdicts)
    return {name: counts[name] for name in VERDICTS}


def _blocks(
    page: Page, anchor: str, anchors: dict[str, str]
) -> tuple[list[tuple[str, Any]], list[Markup]]:
    """The blocks below the title, and how to read the tables; the rest is shown elsewhere."""
    shown: list[tuple[str, Any]] = []
    part = page.heading.part
    for number, block in enumerate(page.blocks):
        if isinstance(block, Table) and len(block.frame.columns):
            title = block.title or f"{part.where}: {part.title}"
            table = html_table(block.frame, f"{anchor}-{number}", title, block.formats)
            shown += [("title", block.title)] if block.title else []
            shown.append(("table", table))
        elif isinstance(block, Text) and block.text and not block.kind:
            shown.append(("text", errata.inline(block.text, anchors)))
    return shown, [errata.inline(reading, anchors) for reading in _texts(page, "reading")]


def _read_runs(outputs: Path) -> Runs:
    """The results of ``runs/*``, the user's and shipped ones; damaged ones are named, skipped."""
    paths: dict[str, Path] = {}
    for folder in (shipped_outputs(outputs), outputs):  # the user's replace shipped ones
        paths |= {path.parent.name: path for path in files.find(folder, "runs/*/result.json")}
    results, problems = read_all(paths[name] for name in sorted(paths))
    for problem in problems:
        logger.warning("left out: %s", problem)
    # The report's recipients do not need the folder's location.
    problems = [problem.replace(f"{outputs}/", "") for problem in problems]
    table = None
    if results:
        frame = run_tables.summary(list(results.values()))
        frame.insert(0, "run", [path.parent.name for path in results])
        table = html_table(frame, "runs-table", "All runs", run_tables.FORMATS)
    return Runs(table, len(results), f"{run_tables.CAPTION} {run_tables.PREDICTIONS}", problems)
