"""Solve layers outside of the runs that read them: by several processes, or for several runs."""

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
from bnrecon.reconstruction.solving import features_key, solutions_in_turn
from bnrecon.run.context import RunContext, open_run
from bnrecon.run.naming import run_folder
from bnrecon.run.preparation import load_images
from bnrecon.run.seed_files import SolvedLayers
from bnrecon.runtime import hardware
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.user_code import WithUserModules
from bnrecon.solvers.solving import LU_UNKNOWNS

logger = logging.getLogger(__name__)

Pending = tuple[PlannedLayer, SolvedLayers]


@dataclass(frozen=True)
class LayerWork(WithUserModules):
    """A layer of a run that is not stored yet (``bnrecon.jobs.work.Work``)."""

    config: RunConfig  # the run, with a trained target
    seed: int
    name: str  # the layer's
    part: ClassVar[str] = "layers"
    data: ClassVar[None] = None  # the run has checked its images
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
        with hardware.use_threads(self.config.threads):
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


def solve_layers_together(runs: Sequence[RunContext], seed: int, least: int = LU_UNKNOWNS) -> int:
    """Solve layers by one LU for all runs, which then read the solutions.

    The features of a layer depend on its distribution, shape, width, seed and number, and not on
    the target (``SharedFactorization``). A solution that misses the tolerance is not stored, so
    that its run solves the layer itself, as it does layers of up to ``least`` equations. Each run
    has the lock of its folder. Returns the number of layers that were solved and stored.
    """
    stored = [SolvedLayers(run.folder / f"seed-{seed}", run.seed_key) for run in runs]
    by_features: dict[object, list[Pending]] = {}
    for run, solved in zip(runs, stored, strict=True):
        for layer in run.plan_of_seed(seed).layers:
            if _takes_an_lu(layer, least) and solved.get(layer) is None:
                by_features.setdefault(features_key(layer), []).append((layer, solved))
    return sum(map(_solve_and_store, by_features.values()))


def _solve_and_store(pending: Sequence[Pending]) -> int:
    """Return how many layers were solved; the runs solve the others, or say why they cannot."""
    count = 0
    try:
        solutions = solutions_in_turn([layer for layer, _ in pending])
        for (layer, solved), solution in zip(pending, solutions, strict=True):
            if solution.report.converged:
                solved.store(layer, solution)
                count += 1
            else:
                residual = solution.report.relative_residual
                logger.warning("%s: residual %.1e, not stored", layer.label, residual)
    except (RunError, UserError) as error:
        logger.warning("%s; left to the runs", error)
    return count


def _takes_an_lu(layer: PlannedLayer, least: int) -> bool:
    """Whether ``auto`` factorizes the layer's system, with all features in it."""
    alone = layer.groups == 1 and layer.features.keep is None and layer.solver.name == "auto"
    dense = layer.choice.solver in ("lu", "refined") and layer.choice.features == layer.width
    return alone and dense and layer.rows > least
