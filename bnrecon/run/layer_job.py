"""One layer of a run, solved alone, where processes share the layers of a run."""

from __future__ import annotations

from bnrecon.config.schema import RunConfig
from bnrecon.run.context import open_run
from bnrecon.run.naming import run_folder
from bnrecon.run.preparation import load_images
from bnrecon.run.seed_files import SolvedLayers
from bnrecon.runtime import hardware


def solve_one_layer(config: RunConfig, seed: int, name: str) -> str:
    """Solve a layer of a run and store it, for the run to read; the solver and its residual.

    What is stored already is not solved again, and what was interrupted goes on. Another process
    holds the lock of the run's folder meanwhile, and waits.

    Raises:
        UserError: the request cannot be met.
        RunError: the layer cannot be solved.
    """
    with hardware.use_threads(config.threads):
        data = load_images(config)
        run = open_run(config, data, run_folder(config, data))
        solved = SolvedLayers(run.folder / f"seed-{seed}", run.seed_key)
        (layer,) = (each for each in run.plan_of_seed(seed).layers if each.name == name)
        solution = solved.get(layer) or solved.solve(layer, layer.draw_groups())
    return f"{solution.report.solver}, residual {solution.report.relative_residual:.1e}"
