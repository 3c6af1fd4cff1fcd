"""Documents: links, tests, commands and examples work; the errata's counterexamples hold."""

from __future__ import annotations

import functools
import importlib
import json
import logging
import math
import operator
import re
import shlex
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
import write_documents
from repository import ROOT
from scipy import integrate

import bnrecon
from bnrecon.config import composition
from bnrecon.jobs.options import OPTIONS, split
from bnrecon.reporting.tables import snake_case
from bnrecon.reproduction.document import document
from bnrecon.studies import registry
from bnrecon.studies.burkholz2024.run_tables import row_numbers

PAGES = sorted(
    {
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "outputs/README.md",
        ROOT / "outputs/main_job/README.md",
        ROOT / "scripts/gpu/README.md",
        *(ROOT / "docs").glob("**/*.md"),
    }
)
PARTS = ("In print", "Counterexample", "Cause", "Repair", "Shown by")
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
EXAMPLES = [
    "README.md",
    "docs/library.md",
    "docs/source-networks.md",
    "docs/solvers.md",
    "docs/partition.md",
]


@functools.cache
def text_of(page: Path) -> str:
    """Return a page's text."""
    return page.read_text(encoding="utf-8")


def without_code(page: Path) -> str:
    """A page without fenced blocks, whose lines are neither headings nor links."""
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as code hosts and MyST make them."""
    plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", without_code(page).lower())
    headings = re.findall(r"^#+ (.+)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """Targets of a page's links and images, inline and by reference."""
    text = without_code(page)
    inline = re.findall(r"\]\(([^)\s]+)\)", text)
    return inline + re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_relative_link_leads_to_an_existing_file_and_heading(page):
    broken = []
    for link in links(page):
        if re.match(r"https?://", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("name", registry.STUDIES)
def test_page_of_a_paper_is_generated_from_the_results(shipped_outputs, name):
    page = ROOT / f"docs/reproduction/{name}.md"
    current = page.exists() and text_of(page) == document(registry.find(name), shipped_outputs)
    assert current, "run python scripts/write_documents.py"
    assert f"reproduction/{name}\n" in text_of(ROOT / "docs/index.md")
    assert f"docs/reproduction/{name}.md" in links(ROOT / "README.md")


def test_data_package_describes_every_shipped_table():
    package = write_documents.data_package()
    shipped = json.loads(text_of(ROOT / "outputs/datapackage.json"))
    assert shipped == package, "run python scripts/write_documents.py"
    tables = {tuple(each["path"].split("/")): each["schema"] for each in package["resources"]}
    assert {study for study, _ in tables} == set(registry.STUDIES)
    fields = {
        field["name"]: field["type"]
        for field in tables["burkholz2024", "width100-laptop.csv"]["fields"]
    }
    assert fields["loss_mean"] == "number"
    assert fields["target"] == "string"


def test_results_page_is_generated_and_short():
    page = text_of(ROOT / "docs/results.md")
    assert write_documents.results(page) == page, "run python scripts/write_documents.py"
    shown = re.sub(r"\]\([^)]*\)|<!--.*?-->", "]", page)
    assert len(re.findall(r"[\w.,%²]*\w[\w.,%²]*", shown)) <= 1500
    rows = re.findall(r"^\|.*", shown, re.MULTILINE)
    assert max(len(cell) for row in rows for cell in row.split("|")) < 120


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_table_rows_have_as_many_cells_as_their_heading(page):
    tables = re.findall(r"(?:^\|.*\n)+", without_code(page), re.MULTILINE)
    cells = [[len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()] for table in tables]
    assert [sizes for sizes in cells if len(set(sizes)) > 1] == []


def test_every_package_is_named():
    packages = {path.parent.name for path in (ROOT / "bnrecon").glob("*/__init__.py")}
    _, section = text_of(ROOT / "CONTRIBUTING.md").split("\n## Where things are\n")
    assert packages <= set(re.findall(r"`(\w+)`", section.partition("\n## ")[0]))


def test_readme_and_its_table_cells_are_short():
    lines = text_of(ROOT / "README.md").splitlines()
    assert len(lines) <= 135
    for line in lines:
        cells = re.sub(r"\]\([^)]*\)|\]\[\d\]", "]", line).split("|")
        assert max(map(len, cells)) <= (110 if line.startswith("|") else 100), line


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_page_names_a_local_folder(page):
    folder = r"(?<![\w.}])/(?:home|Users|root|work|tmp|opt|mnt|usr|var)/\S*"
    assert re.findall(folder, text_of(page)) == []


def test_every_function_of_a_theorem_exists():
    page = text_of(ROOT / "docs/theorems.md")
    files = re.findall(r"\]\(\.\./(bnrecon/[\w/]+)\.py\): ((?:`[\w.]+`(?:, )?)+)", page)
    assert len(files) > 15
    for file, functions in files:
        module = importlib.import_module(file.replace("/", "."))
        for function in re.findall(r"`([\w.]+)`", functions):
            assert operator.attrgetter(function)(module)


def statements(text: str) -> set[tuple[str, str]]:
    """Theorems and the like: ``Theorem 1, Lemmas 2, 3`` has three."""
    kinds = r"(Theorem|Lemma|Corollary|Proposition)s?((?:(?:, | and )?[ ]?\d[\d.]*\b)+)"
    named = re.findall(kinds, text.replace("Corollaries", "Corollary"))
    return {(kind, number) for kind, rest in named for number in re.findall(r"\d[\d.]*", rest)}


@pytest.mark.parametrize(
    ("study", "paper"),
    [
        ("burkholz2024", "Burkholz 2024"),
        ("random_features", "Random features"),
        ("giannou2023", "Giannou et al. 2023"),
        ("bn_explained", "Batch normalization explained"),
    ],
)
def test_every_decided_statement_leads_to_its_code(study, paper):
    page = text_of(ROOT / f"docs/reproduction/{study}.md")
    summary = page.split("\n## Theorems\n")[1].split("\n## ")[0]
    cells = "\n".join(row.split("|")[1] for row in re.findall(r"^\|.*", summary, re.MULTILINE))
    rows = re.findall(rf"^\| {paper}, ([^|]*)", text_of(ROOT / "docs/theorems.md"), re.MULTILINE)
    assert statements(re.sub(r"\(#.*?\)", "", cells)) <= statements("\n".join(rows))


@functools.cache
def names_of_tests(file: Path) -> frozenset[str]:
    """Names of the tests in a file."""
    text = file.read_text(encoding="utf-8")
    return frozenset(re.findall(r"^ *def (test_\w+)\(", text, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_named_test_exists(page):
    named = re.findall(r"tests/([\w/]+\.py)(?:::(\w+))?", text_of(page))
    files = (ROOT / "tests").rglob("test_*.py")
    where = {name: file for file in files for name in names_of_tests(file)}
    wrong = {}
    for file, name in named:
        path = ROOT / "tests" / file
        if not path.exists() or (name and name not in names_of_tests(path)):
            wrong[f"tests/{file}::{name}"] = f"found: {where.get(name)}"
    assert wrong == {}


def test_every_erratum_has_a_test_and_all_its_parts():
    entries = re.split(r"^### ", text_of(ROOT / "docs/errata.md"), flags=re.MULTILINE)[1:]
    numbers = [int(entry.split(".")[0]) for entry in entries]
    assert sorted(numbers) == list(range(1, len(entries) + 1))  # by paper, in the order found
    tested = re.findall(r"^\| (\d+) \| `tests/", text_of(ROOT / "docs/theorems.md"), re.MULTILINE)
    assert list(map(int, tested)) == sorted(numbers)
    for entry in entries:
        for part in PARTS:
            assert f"- **{part}" in entry, (entry.splitlines()[0], part)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_named_part_of_a_study_exists(page):
    named = r"bnrecon (study|tables|figures) (?:study=)?(\w+)((?: [a-z]\w*(?![\w=./]))*)"
    wrong = []
    for command, name, parts in re.findall(named, text_of(page)):
        if name in registry.STUDIES:
            study = registry.find(name)
            words = {*study.parts, *study.solvers}
            wrong += [f"{name} {part}" for part in parts.split() if part not in words]
        elif name != "NAME" and (command != "tables" or name != "FOLDER"):
            wrong.append(f"{command} {name}")
    assert wrong == []


WRITTEN = [page for page in PAGES if page.parent.name != "reproduction"]


def commands(page: Path) -> list[str]:
    """Lines of indented blocks that begin with ``bnrecon run`` or ``bnrecon train``."""
    lines = re.findall(r"^ {4}(bnrecon (?:run|train) .*)$", text_of(page), re.MULTILINE)
    return [line for line in lines if "--config-dir" not in line and "GIVEN" not in line]


@pytest.mark.parametrize("page", list(filter(commands, WRITTEN)), ids=lambda page: page.name)
def test_every_run_on_a_page_can_be_composed(page):
    for line in commands(page):
        words = shlex.split(line, comments=True)[2:]
        options = [word for word in words if not word.startswith("-") and "=" in word]
        if "-m" in words:
            options = [option.partition(",")[0] for option in options]
        composition.compose(split(options, OPTIONS)[2])


def code_blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    pattern = rf"^```{language}\n(.*?)^```$"
    return re.findall(pattern, text_of(page), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # they save files
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    level = logging.getLogger("bnrecon").level
    code = "".join(code_blocks(ROOT / name, "python"))
    try:
        exec(compile(code, name, "exec"), {"model": model})
    finally:
        logging.getLogger("bnrecon").setLevel(level)


def test_constructions_print_the_documented_output(capsys):
    code = "".join(code_blocks(ROOT / "docs/constructions.md", "python"))
    exec(compile(code, "constructions", "exec"), {})
    promised = re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == promised


def test_extending_page_makes_a_run(command, tmp_path, monkeypatch):
    page = ROOT / "docs/extending.md"
    (tmp_path / "my_parts.py").write_text("\n\n".join(code_blocks(page, "python")), "utf-8")
    for text in code_blocks(page, "yaml"):
        name = re.search(r"^name: (\w+)$", text, re.MULTILINE)[1]
        group = {"cauchy": "features", "my_net": "target", "mine": "solver"}[name]
        file = tmp_path / f"my_configs/{group}/{name}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(text, "utf-8")
    (line,) = re.findall(r"^ {4}bnrecon (.*solver=mine)$", text_of(page), re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    code, out, err = command(*shlex.split(line), "scale=smoke", "outputs=out")
    sys.modules.pop("my_parts")
    assert code == 0, err
    assert "mine" in out
    assert "NOT CONVERGED" not in out


def test_tutorial_rebuilds_a_users_network(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # it saves a file
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    cells = json.loads(text_of(ROOT / "docs/tutorial.ipynb"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    level, names = logging.getLogger("bnrecon").level, {}
    try:
        exec(compile("\n".join(code), "tutorial", "exec"), names)
    finally:
        logging.getLogger("bnrecon").setLevel(level)
    model, rebuilt, source = names["model"], names["rebuilt"].network, names["source"]
    assert names["accuracy"](rebuilt) == names["accuracy"](model)
    assert torch.equal(source(names["images"]), rebuilt(names["images"]))
    errors = dict(zip(names["widths"], names["errors"], strict=True))
    assert [width for width in errors if errors[width] < 1e-9] == list(range(105, 116, 2))


# The errata's counterexamples without another test.


def test_lemma_2_1_needs_a_null_vector_with_nonzero_pivots():
    first, second = np.array([[1, 0], [0, 1], [1, 1]]), np.array([[2, 3, -1], [1, 1, -1]])
    target, rows, pivots = np.array([[1, 2], [2, -1]]), [0, 1], [1, 0]
    table = np.einsum("ik,kj->ijk", second, first)
    others = [1 - pivot for pivot in pivots]
    ratios = target[rows, others] / target[rows, pivots]
    matrix = table[rows, others] - ratios[:, None] * table[rows, pivots]
    assert matrix.tolist() == [[2, -1.5, -0.5], [0.5, 1, -1.5]]
    assert np.linalg.matrix_rank(matrix) == 2  # a null space of one dimension
    assert (matrix @ np.ones(3) == 0).all()
    assert (second @ first).tolist() == [[1, 2], [0, 0]]


def test_equation_with_a_skip_connection_needs_both_terms():
    feature, target, skip = (2, 1), (1, 2), (1, 1)
    ratio = Fraction(target[0], target[1])
    both, first_alone = ratio * skip[1] - skip[0], ratio * skip[1]
    for right, rebuilt in ((both, [1, 2]), (first_alone, [Fraction(5, 2), 2])):
        scale = right / (feature[0] - ratio * feature[1])
        inside = [f * scale + s for f, s in zip(feature, skip, strict=True)]
        assert [target[1] / inside[1] * value for value in inside] == rebuilt


def test_full_rank_factors_do_not_make_m_full_rank():
    second = np.array([[1, 1, 1, 1], [1, 1, -1, -1]]) / 2
    first = second.T
    assert np.array_equal(second @ second.T, np.eye(2))
    assert np.array_equal(first.T @ first, np.eye(2))
    matrix = np.einsum("ik,kj->ijk", second, first).reshape(4, 4)
    assert np.linalg.matrix_rank(matrix) == 2
    assert np.array_equal(matrix[:, 0], matrix[:, 1])
    generator = np.random.default_rng(0)
    for _ in range(20):
        inner, outer = np.diag(generator.normal(size=4)), generator.normal(size=(2, 1))
        rebuilt = outer * (second @ inner @ first)
        assert rebuilt[0, 0] * rebuilt[1, 0] == pytest.approx(rebuilt[0, 1] * rebuilt[1, 1])


def test_printed_law_has_half_its_mass_at_aspect_one():
    """And not mass 1 at c1 = 1.2 n; with its upper edge read as 1 + sqrt(λ) it is 1 / λ."""

    def mass(aspect: float, high: float) -> float:
        low = abs(1 - math.sqrt(aspect))

        def printed(x: float) -> float:
            inside = (x * x - low * low) * (high * high - x * x)
            return math.sqrt(max(0, inside)) / (aspect * math.pi * x)

        return integrate.quad(printed, low, high, limit=200)[0]

    assert mass(1, math.sqrt(2)) == pytest.approx(1 / 2)
    assert abs(mass(1.2, math.sqrt(1 + math.sqrt(1.2))) - 1) > 0.3
    assert mass(1.2, 1 + math.sqrt(1.2)) == pytest.approx(1 / 1.2, abs=1e-6)


def test_density_of_the_example_needs_the_exponent():
    printed = 1 - (0.2 / 50) ** (1 / 50)
    assert printed == pytest.approx(0.105, abs=5e-4)
    assert printed ** (1 / 10) == pytest.approx(0.798, abs=5e-4)
    exact = (1 - (1 - 0.8 ** (1 / 50)) ** (1 / 50)) ** (1 / 10)
    assert exact == pytest.approx(0.796, abs=5e-4)
    assert (1 - (1 - exact**10) ** 50) ** 50 == pytest.approx(0.8)
    at_printed = 50 * math.log10(-math.expm1(50 * math.log1p(-(printed**10))))
    assert round(at_printed) == -405
    assert (1 - (1 - printed) ** 50) ** 50 == pytest.approx(0.8, abs=0.02)  # p^d = printed


def test_factor_for_disjoint_supports_needs_the_logarithm():
    fit, each = 0.8**10, 0.9 ** (1 / 5)
    printed, derived = each / (5 * fit), math.log(1 - each) / (5 * math.log1p(-fit))
    assert (round(printed, 2), round(derived, 2)) == (1.82, 6.81)
    assert (1 - (1 - fit) ** (5 * derived)) ** 5 == pytest.approx(0.9)
    assert (1 - (1 - fit) ** (5 * 2)) ** 5 < 0.2


def test_reference_has_every_public_name():
    text = (ROOT / "docs/reference.md").read_text()
    directives = set(re.findall(r"auto\w+:: ([\w.]+)", text))
    assert set(bnrecon.__all__) <= directives
    for name in directives - set(bnrecon.__all__):
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute).__doc__


def test_outputs_page_explains_the_columns_of_runs():
    page = text_of(ROOT / "docs/outputs.md")
    named = {snake_case(name) for name in re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", page)}
    labels = {"data", "target", "scale", "features", "activation_epsilon_of_a_layer"}
    labels |= {"run", "command", "verdict_against_the_target", "verdict_against_the_paper"}
    tables = ["main_job/vgg18_width16/table.csv"]
    tables += [f"burkholz2024/{part}-laptop.csv" for part in ("table1", "width100", "epsilon")]
    columns = {
        re.sub("_(mean|half_width|n)$", "", column)
        for table in tables
        for column in text_of(ROOT / "outputs" / table).splitlines()[0].split(",")
    }
    assert not columns - named - labels
    headings = set()
    for path in (ROOT / "outputs").rglob("*.md"):
        headings |= {
            snake_case(cell) for cell in re.findall(r"(?<=\| )[^|\n]+(?= \|)", text_of(path))
        }
    rows = re.findall(r"^\| (\*.*?) \|", page, re.MULTILINE)
    explained = {snake_case(name) for row in rows for name in re.findall(r"\*([^*]+)\*", row)}
    sometimes = {snake_case(name) for name in row_numbers.SHOWN}  # if a row has a value
    assert not explained - headings - columns - sometimes


def test_data_package_has_every_csv_file_of_the_studies():
    shipped = {
        path.relative_to(ROOT / "outputs").as_posix()
        for name in registry.STUDIES
        for path in (ROOT / "outputs" / name).glob("*.csv")
    }
    assert {each["path"] for each in write_documents.data_package()["resources"]} == shipped
