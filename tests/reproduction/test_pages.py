"""Pages: shipped results are rewritten identically, and no tracked file changes."""

import dataclasses
import re

import pandas as pd
import pytest
from fake_study import study_of
from processes import run
from repository import OUTPUTS, ROOT

from bnrecon.reporting.figures import new_figure
from bnrecon.reproduction import pages
from bnrecon.reproduction.commands import run_study
from bnrecon.reproduction.document import claims_by_part, shown_scale
from bnrecon.reproduction.experiment import Claim, Experiment
from bnrecon.reproduction.pages import write
from bnrecon.reproduction.parts import Task, below, only
from bnrecon.reproduction.report.contents import gather
from bnrecon.reproduction.request import read
from bnrecon.reproduction.task_store import TaskResult, concatenate
from bnrecon.studies import registry


def request_for(tmp_path, *options):
    return read("paper", ["scale=smoke", f"outputs={tmp_path}", *options])


def one_row(width, options):
    return pd.DataFrame({"width": [width], "error": [1 / 3]})


def draw(rows):
    figure, axes = new_figure()
    axes.plot(rows["width"], rows["error"])
    return figure


DRAWN = Experiment(
    "Figure 0",
    "Errors",
    lambda scale, options: [
        Task(f"width {width}", one_row, {"width": width}, tuple(options)) for width in (4, 8)
    ],
    lambda rows: rows,
    lambda rows: f"The largest width is {rows['width'].max()}.",
    draw,
    options={"smoke": ("target=vgg18",)},
    formats={"error": ".2f"},
)


EXCERPTS = [(only("width", 8), 1), (only("width", 16), 2), (below, 0)]


@pytest.mark.parametrize(("excerpt", "shown"), EXCERPTS)
def test_excerpt_or_whole_table_or_nothing_is_above_the_rule(tmp_path, excerpt, shown):
    part = dataclasses.replace(DRAWN, excerpt=excerpt)
    above, below = run_study(study_of(part=part), request_for(tmp_path)).text.split("\n---\n")
    assert len(re.findall(r"^\| [48] ", above, re.MULTILINE)) == shown
    assert len(re.findall(r"^\| [48] ", below, re.MULTILINE)) == 2


def test_figures_are_reproducible_and_named(tmp_path):
    study = study_of(part=DRAWN)
    assert write(study, request_for(tmp_path))[1] == []
    run_study(study, request_for(tmp_path))
    (path,) = write(study, request_for(tmp_path))[1]
    before = {kind: path.with_suffix(kind).read_bytes() for kind in (".png", ".svg")}
    assert before[".png"][1:4] == b"PNG"
    write(study, request_for(tmp_path))
    assert {kind: path.with_suffix(kind).read_bytes() for kind in before} == before


def test_tables_redraw_a_figure_if_numbers_changed_or_it_is_missing(tmp_path):
    study, request = study_of(part=DRAWN), request_for(tmp_path)
    run_study(study, request)
    (path,) = write(study, request)[1]
    path.write_bytes(b"as it was")
    write(study, request, redraw=False)
    assert path.read_bytes() == b"as it was"
    path.unlink()
    write(study, request, redraw=False)
    whole = path.read_bytes()
    path.write_bytes(b"as it was")
    path.with_suffix(".csv").write_text("other numbers")
    write(study, request, redraw=False)
    assert path.read_bytes() == whole


def test_options_that_change_results_have_separate_files(tmp_path):
    study = study_of(part=DRAWN)
    run_study(study, request_for(tmp_path))
    text = run_study(study, request_for(tmp_path, "target.width=8")).text
    assert "Scale smoke, target.width=8; 2 of 2" in text
    folder = request_for(tmp_path).folder
    assert len(list(folder.glob("part-smoke*.md"))) == 2
    assert len(list(folder.glob("tasks/part-smoke/*.json"))) == 4
    run_study(study, request_for(tmp_path, "device=cpu"))
    assert len(list(folder.glob("tasks/part-smoke/*.json"))) == 4


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The tracked results as in a fresh clone, without weights."""
    folder = tmp_path_factory.mktemp("clone")
    listed = run(["git", "ls-files", "-co", "--exclude-standard", "outputs"], cwd=ROOT).stdout
    if not listed:
        pytest.skip("not a checkout")
    for name in listed.split():
        if "/targets/" not in name and (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder / "outputs"


@pytest.mark.parametrize("name", [name for name in registry.STUDIES if (OUTPUTS / name).exists()])
def test_shipped_pages_are_rewritten_without_changing_tracked_files(checkout, name, monkeypatch):
    monkeypatch.setattr(pages, "KINDS", ())  # test_every_part covers figure files
    before = {path: path.read_bytes() for path in checkout.rglob("*") if path.is_file()}
    request = read(name, [f"outputs={checkout}"])
    write(registry.find(name), request)
    assert {path: path.read_bytes() for path in before} == before
    shipped = sorted((checkout / name).glob("*-laptop.*"))
    assert shipped
    for path in shipped:
        if path.suffix in (".md", ".csv", ".tex"):
            written = request.folder / path.name
            assert written.read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name in registry.STUDIES if (OUTPUTS / name).exists()])
def test_formats_are_for_existing_columns(name):
    study = registry.find(name)
    for word in study.parts:
        part = study.part(word)
        paths = sorted((OUTPUTS / name / "tasks" / f"{word}-laptop").glob("*.json"))
        if isinstance(part, Experiment) and part.formats and paths:
            summary = part.summary(concatenate(TaskResult.read(path) for path in paths))
            assert set(part.formats) <= set(summary.columns), word


def test_claims_use_tasks_in_page_order_and_say_if_one_is_missing(tmp_path):
    names = ("width 8", "another", "width 16")
    experiment = Experiment(
        "Theorem 0",
        "Order",
        lambda scale, options: [
            Task(name, one_row, {"width": number}, ()) for number, name in enumerate(names)
        ],
        lambda rows: rows,
        "Nothing.",
        claims=lambda rows: [
            Claim("Theorem 0", "It holds.", "undecided", str(list(rows["width"])))
        ],
    )
    study = study_of(part=experiment)
    request = request_for(tmp_path)
    run_study(study, request)
    page = request.folder / "part-smoke.md"
    ((claim,),) = claims_by_part(study, request.folder.parent, "smoke").values()
    assert claim.evidence == "[0, 1, 2]"
    text = page.read_text()
    assert "**Undecided**: [0, 1, 2]" in text
    next((request.folder / "tasks/part-smoke").glob("another-*")).unlink()
    write(study, request)
    assert "**Undecided so far**: [0, 2]" in page.read_text()


def fail(_rows):
    raise KeyError("width")


def fail_when_drawn(rows):
    """A figure that fails only while its file is written."""
    figure = draw(rows)
    figure.axes[0].set_title(r"$\nothing$")
    return figure


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"summary": fail}, "KeyError: 'width'"), ({"draw": fail_when_drawn}, "ValueError: ")],
    ids=["summary", "figure"],
)
def test_part_that_cannot_be_shown_is_one_line_and_hides_no_other(tmp_path, caplog, change, reason):
    pytest.importorskip("markdown_it")
    broken = dataclasses.replace(DRAWN, **change)
    study, request = study_of(broken=broken, part=DRAWN), request_for(tmp_path)
    outcome = run_study(study, request)
    assert str(outcome.error) == "not all parts can be shown: broken"
    assert f"broken cannot be shown ({reason}" in outcome.text
    assert "Figure 0: Errors" in outcome.text
    assert not list(tmp_path.rglob("broken-smoke.*"))
    assert [part.incomplete for part in gather([(study, request)]).parts] == [True, False]
    lines = [record for record in caplog.records if "cannot be shown" in record.message]
    assert [len(record.message.splitlines()) for record in lines] == [1, 1]
    assert not any(record.exc_info for record in lines)


def test_part_is_shown_at_paper_scale_once_complete_there(tmp_path):
    study = study_of(part=DRAWN)
    request = read("paper", ["scale=paper", f"outputs={tmp_path}"])
    run_study(study, request)
    outputs = request.folder.parent
    assert shown_scale(study, outputs, "part", "laptop") == "paper"
    next((request.folder / "tasks/part-paper").glob("*.json")).unlink()
    write(study, request)
    assert shown_scale(study, outputs, "part", "laptop") == "laptop"
