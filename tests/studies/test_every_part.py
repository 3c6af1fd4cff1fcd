"""Every part of every paper at smoke scale: computed, stored and shown from any results."""

import importlib
import json
import re
from pathlib import Path

import pandas as pd
import pytest
from repository import OUTPUTS

from bnrecon.reporting import tables
from bnrecon.reporting.figures import image, style
from bnrecon.reproduction.experiment import Experiment
from bnrecon.reproduction.study import SCALES
from bnrecon.reproduction.task_store import TaskResult, concatenate, task_key, task_path
from bnrecon.studies import registry

STUDIES = {name: registry.find(name) for name in registry.STUDIES}
PARTS = [
    (name, word)
    for name, study in STUDIES.items()
    for word in study.parts
    if isinstance(study.part(word), Experiment)
]
# Verdicts derived from the theorems, which hold for any of their draws.
VERDICTS = {
    "Theorem 1": "confirmed",
    "Eq. 8": "confirmed",
    "Corollary 2": "confirmed",
    "Beyond Corollary 2: feature maps": "contradicted",
    "Beyond Appendix D: β": "undecided",
    "Beyond Appendix C: the limit": "contradicted",
    "Theorem 2": "needs a condition",
    "Theorem 2, repaired": "confirmed",
    "Corollary 1": "confirmed",
    "Theorem 3, Eq. 24, 25": "confirmed",
    "Theorem 3, Eq. 26": "needs a correction",
    "Proposition 1": "confirmed",
    "Proposition 1, Eq. 28, 29": "needs a condition",
    "Proposition 2, Eq. 13, left": "confirmed",
    "Proposition 2, Eq. 13, right": "needs a correction",
    "Proposition 3": "needs a condition",
    "Proposition 3, repaired": "confirmed",
}


@pytest.mark.parametrize(("name", "word"), PARTS)
@pytest.mark.parametrize("scale", SCALES)
def test_tasks_have_unique_names_and_files_and_json_arguments(name, word, scale):
    tasks = STUDIES[name].part(word).tasks(scale, ())
    assert len({task.name for task in tasks}) == len(tasks) > 0
    assert len({task_path(Path(), word, scale, task) for task in tasks}) == len(tasks)
    for task in tasks:
        assert json.loads(json.dumps(task.arguments)) == task.arguments
        module = importlib.import_module(task.function.__module__)
        assert getattr(module, task.function.__name__) is task.function  # nothing captured


@pytest.fixture(scope="module", params=PARTS, ids="-".join)
def computed(request, tmp_path_factory, cifar):
    """A part, its study and the results of its tasks, as read back from their files."""
    name, word = request.param
    part, folder = STUDIES[name].part(word), tmp_path_factory.mktemp(word)
    options = [f"data.root={cifar}", f"outputs={folder}"] if name == "burkholz2024" else []
    tasks = part.tasks("smoke", part.applicable(options))
    stored = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)  # trained networks are stored below the current folder
        for task in tasks[:1] if name == "burkholz2024" else tasks:
            records = tuple(task.compute().to_dict("records"))
            path = task_path(folder, word, "smoke", task)
            key = task_key(word, task)
            TaskResult(word, "smoke", task.name, key, records, "", "", 0.0).write(path)
            stored.append(TaskResult.read(path))
    return name, word, part, stored


def check_page(part, stored, numbers=True):
    """A page can be made of these results."""
    rows = concatenate(stored)
    summary = part.summary(rows)
    if len(stored) > 1:  # a single task may support a claim without a table line
        assert len(summary) > 0
    assert not summary.isna().all(axis=1).any()
    lines = tables.markdown(summary, part.formats).splitlines()
    assert len(lines) > 2 or not len(summary)
    assert part.caption_for(rows)
    for claim in part.claims(rows) if part.claims else ():
        assert claim.evidence
        assert not (numbers and re.search(r"\bnan\b", claim.evidence)), claim


def test_every_part_makes_a_table_a_figure_and_claims(computed):
    _, _, part, stored = computed
    rows = concatenate(stored)
    assert list(rows.columns) == [tables.snake_case(column) for column in rows.columns]
    check_page(part, stored)
    if part.draw is not None:
        with style():
            assert image(part.draw(rows), "svg").startswith(b"<?xml")


def test_page_works_with_any_single_task_and_without_any(computed):
    name, _, part, stored = computed
    for number, result in enumerate(stored):
        check_page(part, [result], numbers=name == "random_features")
        if len(stored) > 2 and name == "giannou2023":
            check_page(part, stored[:number] + stored[number + 1 :], numbers=False)
    if part.draw is not None:
        with style():
            assert part.draw(concatenate(stored[:1])).axes


def test_theorem_verdicts_are_those_derived(computed):
    name, _, part, stored = computed
    if name == "bn_explained" and part.claims:
        claims = {claim.where: claim.verdict for claim in part.claims(concatenate(stored))}
        assert claims == claims | {w: v for w, v in VERDICTS.items() if w in claims}


def test_shipped_rows_have_the_columns_of_new_ones(computed):
    name, word, _, stored = computed
    shipped = OUTPUTS / name / f"{word}-laptop.csv"
    if shipped.exists() and word != "pruned":  # its first tasks have fewer columns
        new = {"task", *concatenate(stored).columns}
        assert new <= set(pd.read_csv(shipped, nrows=1).columns)


@pytest.mark.parametrize(("name", "word"), PARTS)
def test_shipped_tasks_belong_to_the_study(name, word):
    """No stale file and no page without results."""
    folder = OUTPUTS / name / "tasks" / f"{word}-laptop"
    tasks = STUDIES[name].part(word).tasks("laptop", ())
    names = {task_path(OUTPUTS / name, word, "laptop", task): task.name for task in tasks}
    shipped = set(folder.glob("*.json"))
    assert shipped <= set(names)
    assert {TaskResult.read(path).task for path in shipped} == {names[path] for path in shipped}
    assert bool(shipped) == bool(list((OUTPUTS / name).glob(f"{word}-laptop.*")))
