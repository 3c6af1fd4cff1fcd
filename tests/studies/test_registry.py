"""The registry lists exactly the parts in each paper's folder."""

import re
from pathlib import Path

import pytest

import bnrecon.studies
from bnrecon.reproduction.page import caption_and_details
from bnrecon.reproduction.parts import read_text
from bnrecon.studies import registry
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable

FOLDER = Path(bnrecon.studies.__file__).parent


def test_every_paper_is_registered():
    assert set(registry.STUDIES) == {path.parent.name for path in FOLDER.glob("*/paper.md")}


@pytest.mark.parametrize("name", registry.STUDIES)
def test_every_module_that_binds_a_part_is_listed(name):
    modules = FOLDER.joinpath(name).glob("*.py")
    binding = {
        path.stem
        for path in modules
        if re.search("^PART\\b", path.read_text("utf-8"), re.MULTILINE)
    }
    study = registry.find(name)
    assert binding == set(study.parts)
    assert len(binding) == len(study.parts)
    for file in binding:  # captions are short
        part = study.part(file)
        whole = part.text.caption if isinstance(part, RunTable) else part.caption
        if not isinstance(whole, str):  # a function that fills in numbers
            whole = read_text(FOLDER / name / f"{file}.py").caption
        assert len(caption_and_details(whole)[0].split()) <= 60
