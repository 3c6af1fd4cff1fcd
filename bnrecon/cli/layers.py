"""The layers of one run, solved by several processes: each has a GPU, or a share of the threads."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from bnrecon.cli.user_modules import WithUserModules
from bnrecon.config.schema import RunConfig
from bnrecon.jobs.local_processes import LocalProcesses
from bnrecon.jobs.work import Outcome
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.run.context import RunContext
from bnrecon.run.together import solve_one_layer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LayerWork(WithUserModules):
    """A layer of a run that is not stored yet (``bnrecon.jobs.work.Work``)."""

    config: RunConfig  # the run, whose target is trained
    seed: int
    name: str  # of the layer
    part: ClassVar[str] = "layers"
    data: ClassVar[None] = None  # the run has looked at its images
    target: ClassVar[None] = None
    command: ClassVar[str] = "solve"

    @property
    def key(self) -> str:
        """The seed and the layer."""
        return f"seed-{self.seed}-{self.name}"

    @property
    def label(self) -> str:
        """The seed and the layer, for a reader."""
        return f"seed {self.seed}, layer {self.name}"

    def is_finished(self) -> bool:
        """Only what is not stored is handed out."""
        return False

    def compute(self) -> str:
        """Solve and store the layer."""
        return solve_one_layer(self.config, self.seed, self.name)


def share_layers(jobs: int, run: RunContext, seed: int, layers: Sequence[PlannedLayer]) -> None:
    """Solve and store layers of a run, those with most work first.

    One that fails is named; the run, whose folder this process has locked, then tries it alone.
    """
    ordered = sorted(layers, key=lambda layer: layer.working_bytes, reverse=True)
    work = [LayerWork(run.config, seed, layer.name) for layer in ordered]
    log = run.folder / "layers.log"
    executor = LocalProcesses(min(jobs, len(work)), run.folder / ".locks", log, run.device)
    logger.info("seed %d: %d layers by %s", seed, len(work), executor.name)
    with contextlib.closing(executor.run([work])) as events:
        for event in events:
            if isinstance(event, Outcome):
                level = logging.INFO if event.kind == "done" else logging.WARNING
                logger.log(level, "  %s: %s, %.1f s", event.label, event.gist, event.seconds)
