"""Solve the layers of a run by several processes, outside of the run that reads them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from bnrecon.config.schema import RunConfig
from bnrecon.jobs.local_processes import LocalProcesses
from bnrecon.jobs.work import Outcome
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.run.context import RunContext, open_run
from bnrecon.run.naming import run_folder
from bnrecon.run.preparation import load_images
from bnrecon.run.seed_files import SolvedLayers
from bnrecon.runtime.user_code import WithUserModules

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LayerWork(WithUserModules):
    """A layer of a run that is not stored yet (``bnrecon.jobs.work.Work``)."""

    config: RunConfig  # the run, with a trained target
    seed: int
    name: str  # the layer's
    part: ClassVar[str] = "layers"
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
        """Return ``False``: only layers that are not stored become work."""
        return False

    def compute(self) -> str:
        """Solve the layer and store it for the run; return the solver and its residual.

        A stored layer is not solved again, an interrupted one is resumed. Meanwhile another process
        holds the lock of the run's folder, and waits.
        """
        data = load_images(self.config)
        run = open_run(self.config, data, run_folder(self.config, data))
        solved = SolvedLayers(run.folder / f"seed-{self.seed}", run.seed_key)
        layers = run.plan_of_seed(self.seed).layers
        (layer,) = (each for each in layers if each.name == self.name)
        solution = solved.get(layer) or solved.solve(layer, layer.draw_groups())
        return f"{solution.report.solver}, residual {solution.report.relative_residual:.1e}"


def share_layers(jobs: int, run: RunContext, seed: int, layers: Sequence[PlannedLayer]) -> None:
    """Solve and store layers of a run in processes, each with a GPU or a share of the threads.

    The layers with most work come first. A layer that fails is reported; the run, whose folder this
    process has locked, then tries it itself.
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
