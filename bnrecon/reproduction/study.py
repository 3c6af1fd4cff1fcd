"""A study: a paper's tables and experiments, and the numbers that it prints."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from bnrecon.reproduction.experiments import Experiment

__all__ = ["Study", "read_reported"]


@dataclass(frozen=True)
class Study:
    """``reported`` is the paper's ``reported.yaml``: its name, what every run is given at each scale, its tables of runs."""

    name: str
    reported: Mapping[str, Any]
    experiments: Mapping[str, Experiment]

    @property
    def paper(self) -> str:
        """The paper as it is cited."""
        return self.reported["paper"]

    @property
    def tables(self) -> Mapping[str, Any]:
        """Its tables of runs, by name."""
        return self.reported["tables"]

    @property
    def scales(self) -> Mapping[str, Any]:
        """The scales that it can be run at."""
        return self.reported["scales"]


def read_reported(package: str) -> dict[str, Any]:
    """The ``reported.yaml`` that lies beside a paper's code."""
    return yaml.safe_load(
        importlib.resources.files(package).joinpath("reported.yaml").read_text(encoding="utf-8")
    )
