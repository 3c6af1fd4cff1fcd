"""Documents: links, headings, tests and commands exist; the errata's counterexamples hold."""

from __future__ import annotations

import ast
import functools
import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import integrate

from bnrecon.studies import registry

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    {
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "outputs/README.md",
        *(ROOT / "docs").glob("**/*.md"),
    }
)
STUDIED = {
    "Burkholz 2024": "burkholz2024",
    "Random features for normalization layers": "random_features",
}
PARTS = ("In print", "Derivation", "Counterexample", "Probable cause", "Repair", "Shown by")
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


@functools.cache
def text_of(page: Path) -> str:
    """A page as it stands."""
    return page.read_text(encoding="utf-8")


def without_code(page: Path) -> str:
    """A page without fenced blocks, whose lines are no headings and no links."""
    return re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as code hosts and MyST make them."""
    headings = re.findall(r"^#+ (.+)$", without_code(page).lower(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip()).replace(" ", "-") for heading in headings}


def links(page: Path) -> list[str]:
    """Targets of a page's links and pictures, inline and by reference."""
    text = without_code(page)
    inline = re.findall(r"\]\(([^)\s]+)\)", text)
    return inline + re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_relative_link_leads_to_a_file_and_a_heading_that_exist(page):
    broken = []
    for link in links(page):
        if re.match(r"https?://", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_pages_link_to_each_other_at_all():
    """So that the test above is one of something."""
    pages = {f"docs/{page.name}" for page in PAGES if page.parent.name == "docs"}
    linked = {link.partition("#")[0] for link in links(ROOT / "README.md")}
    assert pages - {"docs/index.md"} <= linked
    assert sum(len(links(page)) for page in PAGES) > 50


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 100 and not line.startswith("|")] == []


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_page_names_a_folder_of_a_machine(page):
    folder = r"(?<![\w.}])/(?:home|Users|root|work|tmp|opt|mnt|usr|var)/\S*"
    assert re.findall(folder, text_of(page)) == []


@functools.cache
def names_of_tests(file: Path) -> frozenset[str]:
    """Of the tests that a file defines."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    names = (node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in names if name.startswith("test_"))


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_test_that_is_named_exists(page):
    named = re.findall(r"tests/([\w/]+\.py)(?:::(\w+))?", text_of(page))
    files = (ROOT / "tests").rglob("test_*.py")
    where = {name: file for file in files for name in names_of_tests(file)}
    wrong = {}
    for file, name in named:
        path = ROOT / "tests" / file
        if not path.exists() or (name and name not in names_of_tests(path)):
            wrong[f"tests/{file}::{name}"] = f"found: {where.get(name)}"
    assert wrong == {}


def test_every_erratum_names_a_test_and_has_all_its_parts():
    entries = re.split(r"^### ", text_of(ROOT / "docs/errata.md"), flags=re.MULTILINE)[1:]
    assert [int(entry.split(".")[0]) for entry in entries] == list(range(1, len(entries) + 1))
    for entry in entries:
        for part in PARTS:
            assert f"- **{part}" in entry, (entry.splitlines()[0], part)
        assert re.search(r"tests/[\w/]+\.py::test_\w+", entry), entry.splitlines()[0]


def known_parts(name: str) -> set[str]:
    """Tables and experiments of a study, and what narrows them."""
    return {*registry.find(name).tables, *registry.find(name).experiments, "exact", "paper"}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_part_of_a_study_that_is_named_exists(page):
    text = text_of(page)
    wrong = []
    called = r"bnrecon (?:study |(?:tables|figures) study=)(\w+(?: [a-z]\w*(?![\w=.]))*)"
    for command in re.findall(called, text):
        name, *parts = command.split()
        if name == "NAME":
            continue
        if name not in registry.STUDIES:
            wrong.append(command)
            continue
        wrong += [f"{name} {part}" for part in parts if part not in known_parts(name)]
    assert wrong == []


def test_every_part_in_the_tables_of_results_exists():
    sections = re.split(r"^## ", text_of(ROOT / "docs/results.md"), flags=re.MULTILINE)
    named = re.compile(r"^\| `([a-z]\w*)` \|", re.MULTILINE)
    listed = {section.splitlines()[0]: set(named.findall(section)) for section in sections}
    for heading, name in STUDIED.items():
        assert listed[heading] == known_parts(name) - {"exact", "paper"}


# The errata's counterexamples that no other test has.


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


def test_the_equation_with_a_skip_connection_needs_both_terms():
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


def test_the_printed_law_has_half_its_mass_at_an_aspect_of_one():
    """And 1 / λ with its upper edge read as 1 + sqrt(λ)."""

    def mass(aspect: float, high: float) -> float:
        low = abs(1 - math.sqrt(aspect))

        def printed(x: float) -> float:
            inside = (x * x - low * low) * (high * high - x * x)
            return math.sqrt(max(0, inside)) / (aspect * math.pi * x)

        return integrate.quad(printed, low, high, limit=200)[0]

    assert mass(1, math.sqrt(2)) == pytest.approx(1 / 2)
    assert mass(1.2, 1 + math.sqrt(1.2)) == pytest.approx(1 / 1.2, abs=1e-6)


def test_the_density_of_the_example_needs_the_exponent():
    printed = 1 - (0.2 / 50) ** (1 / 50)
    assert printed == pytest.approx(0.105, abs=5e-4)
    assert printed ** (1 / 10) == pytest.approx(0.798, abs=5e-4)
    at_printed = 50 * math.log10(-math.expm1(50 * math.log1p(-(printed**10))))
    assert round(at_printed) == -405
    assert (1 - (1 - printed) ** 50) ** 50 == pytest.approx(0.8, abs=0.02)  # p^d = printed


def test_the_factor_for_disjoint_supports_needs_the_logarithm():
    fit, each = 0.8**10, 0.9 ** (1 / 5)
    printed, derived = each / (5 * fit), math.log(1 - each) / (5 * math.log1p(-fit))
    assert (round(printed, 2), round(derived, 2)) == (1.82, 6.81)
    assert (1 - (1 - fit) ** (5 * derived)) ** 5 == pytest.approx(0.9)
    assert (1 - (1 - fit) ** (5 * 2)) ** 5 < 0.2
