"""Weights & Biases: runs that are kept in files until ``wandb sync`` uploads them."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bnrecon.runtime.tracking import Plain, Values

__all__ = ["Wandb"]

KINDS = ("epoch", "layer", "seed")  # each of which is the axis of its own numbers
WRITE_EVERY = 1.0  # seconds; by default 15, which a killed process would lose


class Wandb:
    """Writes to ``FOLDER/wandb``; what is uploaded is up to ``WANDB_MODE``, which is ``offline``.

    Args:
        folder: of all trackers.
        project: wandb's project.
    """

    name = "wandb"
    pause = 0.0
    lag = 3.0  # of which wandb's own process waits WRITE_EVERY before it writes; it may be busy

    def __init__(self, folder: Path, project: str) -> None:
        self.folder, self.project = folder.absolute(), project
        self.mode: Any = os.environ.get("WANDB_MODE") or "offline"  # which wandb checks

    @property
    def view(self) -> str:
        """The command that uploads what was written."""
        if self.mode != "offline":
            return f"wandb's project {self.project} (WANDB_MODE={self.mode})"
        return f"wandb sync {shlex.quote(str(self.folder / self.name))}/offline-run-*"

    def record(self, run: str) -> Path:
        """Beside the runs."""
        return self.folder / self.name / "sent" / self.project / f"{run}.txt"

    def start(self, run: str, config: Mapping[str, Plain], before: int) -> None:
        """Begin a run of wandb, or a further part of the run that has this name."""
        if self.mode == "offline":  # read when wandb is imported, which reports its own errors
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        with tempfile.TemporaryDirectory(dir=self.folder):
            pass  # raises where wandb would silently write to another folder
        group, name = run.split("/", 1)
        self._step = before
        self._run = wandb.init(
            project=self.project,
            name=name,
            id=re.sub(r"[^\w.-]", "_", name)[-128:],
            group=group,
            config=dict(config),
            dir=str(self.folder),
            mode=self.mode,
            resume="allow",
            reinit="create_new",
            save_code=False,
            settings=wandb.Settings(
                console="off",
                silent=True,
                x_disable_stats=True,
                x_transaction_log_flush_interval=WRITE_EVERY,
            ),
        )
        for kind in KINDS:
            self._run.define_metric(f"{kind}/*", step_metric=kind)

    def log(self, kind: str, step: int, values: Values) -> None:
        """Add a row of numbers. wandb's own steps count the rows: one sent again has its step."""
        self._run.log({kind: step, **values}, step=self._step, commit=True)
        self._step += 1

    def result(self, values: Values) -> None:
        """Set the run's summary."""
        self._run.summary.update(dict(values))

    def flush(self) -> None:
        """Nothing: there is no call that waits for wandb's own process."""

    def finish(self) -> None:
        """Close the run; online, wait for its upload."""
        self._run.finish()
