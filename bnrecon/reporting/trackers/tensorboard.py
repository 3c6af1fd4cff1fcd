"""TensorBoard: event files, a folder for each run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from bnrecon.runtime.tracking import Plain, Values

__all__ = ["TensorBoard"]


class TensorBoard:
    """Writes ``FOLDER/tensorboard/runs/NAME`` and ``FOLDER/tensorboard/targets/NAME``.

    Args:
        folder: of all trackers.
        project: makes no difference; TensorBoard knows none.
    """

    name = "tensorboard"
    pause = lag = 0.0

    def __init__(self, folder: Path, project: str) -> None:  # noqa: ARG002 (as the others)
        self.folder = folder / self.name

    @property
    def view(self) -> str:
        """The command that shows what was written."""
        return f"tensorboard --logdir {shlex.quote(str(self.folder))}"

    def record(self, run: str) -> Path:
        """Beside the event files: who removes a run's folder may send the run again."""
        return self.folder / run / "sent.txt"

    def start(self, run: str, config: Mapping[str, Plain], before: int) -> None:
        """Open a file of events; a run that goes on has several, which TensorBoard shows as one."""
        from torch.utils.tensorboard import SummaryWriter

        self._config = dict(config)
        self._writer = SummaryWriter(str(self.folder / run))
        if not before:
            rows = "".join(f"| {name} | {value} |\n" for name, value in config.items())
            self._writer.add_text("config", f"| option | value |\n|---|---|\n{rows}")

    def log(self, kind: str, step: int, values: Values) -> None:  # noqa: ARG002 (a tag says it)
        """Add a scalar for each number."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def result(self, values: Values) -> None:
        """Add scalars, and the row of the tab "HParams" with the run's options."""
        self._writer.add_hparams(self._config, dict(values), run_name=".")

    def flush(self) -> None:
        """Have the writer's thread write everything."""
        self._writer.flush()

    def finish(self) -> None:
        """Close the file."""
        self._writer.close()
