"""The command that computes a row of a table of runs again, to the same digits."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from bnrecon.config.schema import RunConfig
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction.options import option_name
from bnrecon.targets.location import own_folder

if TYPE_CHECKING:
    from bnrecon.reproduction.run_table import Cell

__all__ = ["command_of"]


@dataclass(frozen=True)
class _Pixels:
    """Images of which nothing but the digest is known."""

    digest: str

    def checksum(self) -> str:
        return self.digest


def command_of(cell: Cell) -> str:
    """The command that computes a row; it names no folder of this machine.

    A finished row's command gives the same digits: it names the number of threads, the precision
    in which a processor trained the target, and the folder of trained targets, and writes to a new
    folder. A target that a GPU trained is found there too, unless there is one of a processor.
    """
    local = {"outputs", "targets", "data.root", "device", "threads"}
    overrides = [item for item in cell.row.overrides if option_name(item) not in local]
    if cell.result is not None:
        overrides += _machine(cell.config, cell.result)
    return shlex.join(("bnrecon", "run", *overrides))


def _machine(config: RunConfig, result: RunResult) -> list[str]:
    """Overrides for the machine that a result was computed on."""
    cpu = re.match(r"cpu \((\d+) threads?\)", result.device)
    found = ["device=cpu", f"threads={cpu[1]}"] if cpu else ["device=cuda"]
    folder = Path(result.target.folder)
    undecided = cpu and config.train.precision == "auto"
    for dtype in (torch.bfloat16, torch.float32) if undecided else ():
        pixels: Any = _Pixels(result.data.checksum)
        if own_folder(config.target_request, pixels, "cpu", dtype).name == folder.name:
            found.append(f"train.precision={str(dtype).removeprefix('torch.')}")
    store = "FOLDER" if folder.is_absolute() else str(folder.parent)
    return [*found, f"targets={store}", "outputs=again"]
