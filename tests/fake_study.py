"""A study of fake parts, for tests of the engine."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from bnrecon.reproduction.experiment import Experiment
from bnrecon.reproduction.parts import Task
from bnrecon.reproduction.study import SCALES, Study


@dataclass(frozen=True)
class FakeStudy(Study):
    made: dict[str, Any] = field(default_factory=dict)

    def part(self, name):
        return self.made[name]


class Counted:
    """Computes rows, and records the names of its tasks."""

    def __init__(self, failing=None):
        self.calls = []
        self.failing = failing or {}

    def __call__(self, name, options=()):
        self.calls.append(name)
        if name in self.failing:
            raise self.failing[name]
        return pd.DataFrame({"n": [1.5, 2.25], "word": [name, ""]})


def counted_experiment(counted, *names, options=None):
    return Experiment(
        "Theorem 0",
        "Nothing",
        lambda scale, overrides: [
            Task(name, counted, {"name": name}, None if options is None else (*options, *overrides))
            for name in names
        ],
        lambda rows: rows,
        "A caption.",
        options=dict.fromkeys(SCALES, options or ()),
    )


def study_of(**parts):
    return FakeStudy("paper", "A paper", tuple(parts), ("exact", "paper"), made=parts)
