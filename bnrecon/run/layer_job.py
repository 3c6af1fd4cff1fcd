"""One layer of a run, solved alone: processes or jobs share the layers of a run so."""

from __future__ import annotations

from pathlib import Path

from bnrecon.config.schema import RunConfig
from bnrecon.reconstruction.folding import find_layers
from bnrecon.run.context import open_run
from bnrecon.run.naming import run_folder
from bnrecon.run.preparation import load_images
from bnrecon.run.seed_files import SolvedLayers, solution_file
from bnrecon.runtime import hardware
from bnrecon.targets.building import build_target
from bnrecon.targets.given_weights import load_given


def list_layers(config: RunConfig) -> list[str]:
    """The names of a run's layers, those with most equations first; its target may be untrained."""
    network = build_target(config.target_request, load_images(config)).eval()
    if config.target.weights is not None:
        load_given(network, config.target.weights)
    layers = find_layers(network).layers
    return [each.name for each in sorted(layers, key=lambda x: -x.target.shape.equations)]


def is_solved(folder: Path, seed: int, name: str) -> bool:
    """Whether a run's folder has a solution of a layer, or the whole seed."""
    files = (folder / f"seed-{seed}" / file for file in ("result.json", solution_file(name)))
    return any(file.exists() for file in files)


def solve_one_layer(config: RunConfig, seed: int, name: str) -> str:
    """Solve a layer of a run and store it, for the run to read; the solver and its residual.

    The target is trained, or read. What is stored already is not solved again, and what was
    interrupted goes on.

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
