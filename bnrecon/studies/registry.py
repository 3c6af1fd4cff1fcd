"""The studies, by name. Adding a paper is adding its folder's name here."""

from __future__ import annotations

import importlib

from bnrecon.reproduction.study import Study
from bnrecon.runtime.errors import UserError, nearest

STUDIES = ("burkholz2024", "random_features", "giannou2023", "bn_explained")


def find(name: str) -> Study:
    """A study by name; importing it imports no part of it.

    >>> find("burkholz2024").paper
    'Burkholz 2024'

    Raises:
        UserError: there is no study of this name; the message has the nearest one.
    """
    if name not in STUDIES:
        raise UserError(f"study={name}: {nearest(name, STUDIES)}")
    return importlib.import_module(f"bnrecon.studies.{name}.study").STUDY
