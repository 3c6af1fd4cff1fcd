"""The studies that there are. Adding a paper is adding its name here."""

from __future__ import annotations

import importlib

from bnrecon.reproduction.study import Study
from bnrecon.runtime.errors import UserError, nearest

__all__ = ["STUDIES", "find", "usage"]

STUDIES = ("burkholz2024", "random_features")

USAGE = """usage: bnrecon study NAME [PART ...] [scale=smoke|laptop|paper] [jobs=N] [OPTION=VALUE ...]
       bnrecon tables NAME [PART ...] [scale=...] [OPTION=VALUE ...]
       bnrecon figures NAME [the same]

NAME and its PARTs, all of them if none is named; of table1 and table2 also exact (our solver) or paper (the paper's):
{listed}
jobs=N has N processes share the work: on two cores jobs=2 is faster than one process with two threads.
Options go to every run, as data.root=FOLDER, outputs=FOLDER, device=cuda."""


def find(name: str) -> Study:
    """A study by name; raise ``UserError`` with the nearest name for one that there is not.

    >>> find("burkholz2024").paper
    'Burkholz 2024'
    """
    if name not in STUDIES:
        raise UserError(f"study={name}: {nearest(name, STUDIES)}")
    return importlib.import_module(f"bnrecon.studies.{name}.study").STUDY


def usage() -> str:
    """How the commands for studies are given, with the studies that there are and their parts."""
    parts = {name: (*find(name).tables, *find(name).experiments) for name in STUDIES}
    listed = "\n".join(f"  {name:16} {' '.join(words)}" for name, words in parts.items())
    return USAGE.format(listed=listed)
