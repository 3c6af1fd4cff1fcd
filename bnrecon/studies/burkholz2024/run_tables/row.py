"""The rows of a table of runs: each one's run, its result, and the command that recomputes it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from bnrecon.config import composition
from bnrecon.config.schema import RunConfig
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction.request import option_name
from bnrecon.reproduction.work import RunWork
from bnrecon.studies.burkholz2024.run_tables.verdicts import Reported, against_paper, against_target
from bnrecon.targets.location import device_folder


@dataclass(frozen=True)
class Row:
    """A row of a table: one run."""

    labels: Mapping[str, str]  # by heading, what distinguishes the row
    overrides: tuple[str, ...]  # of the run
    reported: Reported | None = None  # the paper's numbers, if any
    possible: bool = True  # whether the paper's numbers can be right


@dataclass(frozen=True)
class Cell:
    """A row with its run: configuration, folder, and the result once it is finished."""

    row: Row
    config: RunConfig
    folder: Path
    result: RunResult | None

    @property
    def name(self) -> str:
        """What distinguishes the row."""
        return ", ".join(filter(None, self.row.labels.values()))

    @property
    def compared(self) -> bool:
        """Whether the paper has a loss for this row and target width."""
        reported = self.row.reported
        if reported is None or not self.row.possible:
            return False
        return reported.width in (None, self.config.target.width)

    @property
    def against_target(self) -> str:
        """The verdict against the target; "not run" without a result."""
        if self.result is None:
            return "not run"
        return against_target(self.result.loss, [seed.predictions for seed in self.result.seeds])

    @property
    def against_paper(self) -> str:
        """The verdict against the paper's loss; empty without a result."""
        if self.result is None:
            return ""
        row, width = self.row, self.config.target.width
        return against_paper(self.result.loss, row.reported, row.possible, width)

    @property
    def command(self) -> str:
        """The command that computes the row, without folders of this machine.

        A finished row's command gives the same digits: it sets the number of threads, the precision
        in which a CPU trained the target, and the folder of trained targets, and writes to a new
        folder. A target trained on a GPU is used from there too, unless a CPU's exists.
        """
        local = {"outputs", "targets", "data.root", "device", "threads"}
        overrides = [item for item in self.row.overrides if option_name(item) not in local]
        if self.result is not None:
            overrides += _machine(self.config, self.result)
        return shlex.join(("bnrecon", "run", *overrides))


def results_of(cells: Iterable[Cell]) -> list[RunResult]:
    """The results of finished cells."""
    return [cell.result for cell in cells if cell.result is not None]


@dataclass(frozen=True)
class RowWork(RunWork):
    """The run of a row."""

    row: Row

    @classmethod
    def of(cls, part: str, row: Row) -> RowWork:
        """The work of a part's row."""
        return cls(part, row.labels, row.overrides, composition.compose(row.overrides), row)

    def cell(self) -> Cell:
        """The row with its result."""
        return Cell(self.row, self.config, self.folder, self.result())


def _machine(config: RunConfig, result: RunResult) -> list[str]:
    """Overrides for the machine that computed a result."""
    cpu = re.match(r"cpu \((\d+) threads?\)", result.device)
    words = ["device=cpu", f"threads={cpu[1]}"] if cpu else ["device=cuda"]
    folder = Path(result.target.folder)
    undecided = cpu and config.train.precision == "auto"
    for dtype in (torch.bfloat16, torch.float32) if undecided else ():
        # Images of which only the digest is known.
        pixels: Any = SimpleNamespace(checksum=lambda: result.data.checksum)
        if device_folder(config.target_request, pixels, "cpu", dtype).name == folder.name:
            words.append(f"train.precision={str(dtype).removeprefix('torch.')}")
    store = "FOLDER" if folder.is_absolute() else str(folder.parent)
    return [*words, f"targets={store}", "outputs=again"]
