"""The texts of all parts: short above the table, long below."""

from __future__ import annotations

import importlib

import pytest

from bnrecon.reproduction.page import caption_and_details
from bnrecon.reproduction.parts import read_text
from bnrecon.studies import registry

STUDIES = [registry.find(name) for name in registry.STUDIES]
PARTS = [(study.name, name) for study in STUDIES for name in study.parts]


@pytest.mark.parametrize(("study", "name"), PARTS)
def test_a_caption_is_read_in_a_glance(study, name):
    module = importlib.import_module(f"bnrecon.studies.{study}.{name}")
    whole = module.PART.caption  # or a function that fills in numbers
    caption, _ = caption_and_details(
        whole if isinstance(whole, str) else read_text(module.__file__).caption
    )
    assert len(caption.split()) <= 60
