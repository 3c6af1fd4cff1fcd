"""The registry: what lies in a paper's folder is what the study lists, and listing is cheap."""

import re
from pathlib import Path

import pytest

import bnrecon.studies
from bnrecon.runtime.errors import UserError
from bnrecon.studies import registry

FOLDER = Path(bnrecon.studies.__file__).parent


def test_every_paper_in_the_folder_is_registered():
    assert set(registry.STUDIES) == {path.parent.name for path in FOLDER.glob("*/study.py")}


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


@pytest.mark.parametrize("name", registry.STUDIES)
def test_every_part_says_where_it_stands_and_what_it_shows(name):
    study = registry.find(name)
    for part in map(study.part, study.parts):
        assert part.where
        assert part.title
        assert not part.title.endswith(".")


def test_a_mistyped_name_is_answered_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'burkholz2024'"):
        registry.find("burkholz2042")
    with pytest.raises(UserError, match="did you mean 'table1'"):
        registry.find("burkholz2024").part("tabel1")
