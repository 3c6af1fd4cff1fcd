"""The studies, by name. Adding a paper is adding its folder's name here."""

from __future__ import annotations

from bnrecon.reproduction.study import Study, read_study
from bnrecon.runtime.errors import require_choice

STUDIES = ("burkholz2024", "random_features", "giannou2023", "bn_explained")


def find(name: str) -> Study:
    """Return a study by name, without importing its parts.

    >>> find("burkholz2024").paper
    'Burkholz 2024'

    Raises:
        UserError: no study has this name; the message suggests the nearest one.
    """
    require_choice("study=", name, STUDIES)
    return read_study(name)
