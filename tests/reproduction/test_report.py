"""Reports: one complete HTML file, reproducible, that escapes all names."""

import base64
import dataclasses
import gzip
import hashlib
import json
import re
from html import unescape
from html.parser import HTMLParser

import pandas as pd
import pytest
from fake_study import study_of
from repository import RESULTS

from bnrecon.cli.report import check_output
from bnrecon.reporting.figures import new_figure
from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.commands import run_study
from bnrecon.reproduction.experiment import Claim, Experiment
from bnrecon.reproduction.parts import Task
from bnrecon.reproduction.report import errata
from bnrecon.reproduction.report.contents import gather
from bnrecon.reproduction.report.html_table import html_table, number_of
from bnrecon.reproduction.request import read
from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError
from bnrecon.studies import registry

pytest.importorskip("itables")
pytest.importorskip("markdown_it")

from bnrecon.reproduction.report.html import render

HOSTILE = "</td><script>alert(1)</script><img src=x onerror=alert(1)>\"'&amp;[a](javascript:x)"
VOID = {"meta", "link", "br", "img", "input", "hr"}


def rows_of(name, options=()):
    return pd.DataFrame({"class": [name, "plain"], "error": [4.0e-11, 2.5]})


def draw(rows):
    figure, axes = new_figure()
    axes.plot([1, 2], rows["error"][:2], "o-", label="error")
    axes.legend()
    return figure


def claims(rows):
    evidence = f"of class {rows['class'].iloc[0]}, `{len(rows)}` rows (erratum 17)"
    return [
        Claim("Theorem 0", "It holds, says " + rows["class"].iloc[0], "confirmed", evidence),
        Claim("Theorem 9", "It is undecided.", "undecided", "nothing"),
    ]


def experiment(*names, **changed):
    made = Experiment(
        "Figure 0",
        "Errors by class",
        lambda scale, options: [Task(name, rows_of, {"name": name}) for name in names],
        lambda rows: rows,
        lambda rows: f"The class `{rows['class'].iloc[0]}` comes first: {rows['class'].iloc[0]}",
        draw,
        formats={"error": ".1e"},
        claims=claims,
    )
    return dataclasses.replace(made, **changed)


def report_on(study, outputs, compute=True):
    request = read("paper", ["scale=smoke", f"outputs={outputs}"])
    if compute:
        run_study(study, request)
    return gather([(study, request)])


@pytest.fixture(scope="module")
def shipped(shipped_outputs):
    """The report of the paper with the fewest results."""
    study = registry.find("giannou2023")
    return gather([(study, read("giannou2023", [f"outputs={shipped_outputs}"]))])


class Outline(HTMLParser):
    """Elements in order, all closed where required; ids, references and headings."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.ids, self.references, self.headings = [], [], [], []
        self.texts, self.tags, self.fetched = [], [], []
        self.feed(html)
        self.close()
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        by_name = dict(attributes)
        assert len(by_name) == len(attributes), (tag, attributes)
        self.tags.append((tag, by_name))
        self.ids += [by_name["id"]] if "id" in by_name else []
        if tag in ("a", "use") and by_name.get("href", "").startswith("#"):
            self.references.append(by_name["href"][1:])
        self.references += by_name.get("aria-labelledby", "").split()
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            value = by_name.get(name, "")
            if tag != "a" and value and not value.startswith(("#", "data:")):
                self.fetched.append((tag, value))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open[-1] == tag, f"</{tag}> in {self.open}"
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)


def assert_is_sound(html):
    outline = Outline(html)
    assert len(outline.ids) == len(set(outline.ids))
    assert not set(outline.references) - set(outline.ids)
    assert outline.fetched == []
    assert outline.headings[0] == 1
    assert outline.headings.count(1) == 1
    steps = zip(outline.headings, outline.headings[1:], strict=False)
    assert all(after <= before + 1 for before, after in steps), outline.headings
    return outline


def test_report_of_shipped_results_is_sound_html_that_fetches_nothing(shipped):
    html = render(shipped).decode()
    assert_is_sound(html)
    assert not re.search(r"url\((?!#)", html.partition("</style>")[0])
    assert "default-src &#39;none&#39;;" in html
    for part in shipped.parts:
        assert f'<h3 id="{part.anchor}">' in html
    for verdict in shipped.verdicts:
        assert verdict.claim.verdict in html


def test_same_results_give_the_same_bytes(shipped, tmp_path):
    study = study_of(part=experiment("a", "b"))
    report_on(study, tmp_path)
    assert render(report_on(study, tmp_path, False)) == render(report_on(study, tmp_path, False))
    assert render(shipped) == render(shipped)


def test_hostile_name_stays_text_everywhere(tmp_path):
    study = study_of(part=experiment(HOSTILE))
    html = render(report_on(study, tmp_path)).decode()
    outline = assert_is_sound(html)
    assert "<script>alert" not in html
    assert [tag for tag, _ in outline.tags].count("script") == 2
    (picture,) = [attributes for tag, attributes in outline.tags if tag == "img"]
    assert picture["src"].startswith("data:image/svg+xml,%3C%3Fxml")
    assert picture["alt"].startswith(f"Figure 0: Errors by class. The class {HOSTILE} comes first")
    assert not [1 for _, attributes in outline.tags if any(n.startswith("on") for n in attributes)]
    assert HOSTILE in outline.texts  # unchanged in the table
    targets = [attributes.get("href", "") for tag, attributes in outline.tags if tag == "a"]
    assert all(target.startswith(("#", "https://")) for target in targets)


def test_policy_allows_only_the_reports_script(tmp_path):
    html = render(report_on(study_of(part=experiment("a")), tmp_path)).decode()
    (script,) = re.findall(r'<script type="module">(.*?)</script>', html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1])
    assert f"script-src 'sha256-{digest}' blob:" in policy
    assert "'unsafe-inline'" not in policy.partition("script-src")[2]
    (library,) = re.findall(r'id="library">([^<]*)<', html)
    assert b"DataTables" in gzip.decompress(base64.b64decode(library))


def test_one_finished_task_suffices_and_missing_ones_are_named(tmp_path):
    study = study_of(part=experiment("first"))
    report_on(study, tmp_path)
    report = report_on(study_of(part=experiment("first", "second <i>")), tmp_path, False)
    (part,) = report.parts
    assert part.incomplete
    assert part.page.lacking == ["second <i>"]
    html = render(report).decode()
    assert_is_sound(html)
    assert "1 of 2 tasks finished" in html
    assert "<li>second &lt;i&gt;" in html
    assert html.count("so far: 1 of 2 tasks finished") == 5  # for two claims
    assert html.count("1 from incomplete parts") == 2
    assert "1 claim is undecided: 1 of parts that are not complete" in html


def test_hostile_name_in_a_result_stays_text(tmp_path):
    source = RESULTS[0]
    folder = tmp_path / "runs" / "x"
    folder.mkdir(parents=True)
    content = json.loads(source.read_text(encoding="utf-8"))
    content.pop("digest")
    content["config"]["features"]["name"] = HOSTILE
    content["data"]["name"] = HOSTILE
    files.write_json(folder / "result.json", content)
    report = report_on(study_of(part=experiment("a")), tmp_path, compute=False)
    assert report.runs.count == 1
    outline = assert_is_sound(render(report).decode())
    assert HOSTILE in outline.texts


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        (Interval(99.17, 0.0, 3), 99.17),
        ("99.17 ± 0.00 (n=3)", 99.17),
        ("4.0e-11", 4.0e-11),
        ("561 of 480,000", 561),
        ("480,000", 480_000),
        ("> 1e16", 1e16),
        ("-0.5 ± 0.1", -0.5),
        ("−3", -3),
        (".5", 0.5),
        (12, 12),
        (2.5e-9, 2.5e-9),
        (float("inf"), float("inf")),
        (float("nan"), None),
        ("not run", None),
        ("3x3", None),
        ("vgg18", None),
        ("e5", None),
        ("", None),
        (None, None),
        (True, None),
    ],
)
def test_cells_are_sorted_by_their_leading_number(cell, number):
    text = "" if cell is None or cell != cell else str(cell)
    assert number_of(cell, text) == number


def test_number_columns_may_hold_words_and_word_columns_numbers():
    frame = pd.DataFrame(
        {"loss": ["0.1", "not run", "0.3", ""], "name": ["a", "3 b", "c", "d"], "no": [1, 2, 3, 4]}
    )
    table = html_table(frame, "t", "T", {})
    assert [column.numeric for column in table.columns] == [True, False, True]
    assert [row[0].order for row in table.rows] == ["0.1", "", "0.3", ""]


def test_errata_keep_links_within_the_page_but_no_html():
    text = (
        "# Errata\n\n<script>x</script> [1](#1-a-b) [other](other.md) [far](https://a.b)"
        " ![p](p.png)\n\n| a |\n|---|\n| 1 |\n\n## Paper\n\n### 1. A: b\n\nText."
    )
    page = errata.read_errata(text)
    assert page.anchors == {"1": "errata-1-a-b"}
    assert "<script>" not in page.html
    assert '<a href="#errata-1-a-b">1</a>' in page.html
    assert "other.md" not in page.html
    assert "<img" not in page.html
    assert '<h4 id="errata-1-a-b">' in page.html
    assert "<td>1</td>" in page.html


def test_report_replaces_only_reports(tmp_path):
    path = tmp_path / "report.html"
    check_output(tmp_path / "new" / "report.html", overwrite=False)
    path.write_bytes(
        render(report_on(study_of(part=experiment("a")), tmp_path / "o", compute=False))
    )
    check_output(path, overwrite=False)
    other = tmp_path / "thesis.html"
    other.write_text("<!DOCTYPE html>mine", encoding="utf-8")
    with pytest.raises(UserError, match=r"not a bnrecon report; give another name, or --overwrite"):
        check_output(other, overwrite=False)
    check_output(other, overwrite=True)
    with pytest.raises(UserError, match="is a folder"):
        check_output(tmp_path, overwrite=True)
    with pytest.raises(UserError, match="is a file, not a folder"):
        check_output(other / "report.html", overwrite=True)
