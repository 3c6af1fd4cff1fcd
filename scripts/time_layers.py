#!/usr/bin/env python3
"""Do a run, and print the seconds of each of its layers as a small JSON.

    python scripts/time_layers.py target=resnet18 features=sign seeds=[0] [NAME=VALUE ...]

Resumable as `bnrecon run` is; of a run that is done it prints what its result says.
"""

from __future__ import annotations

import contextlib
import json
import sys

from bnrecon.cli import exit_codes, main
from bnrecon.config.composition import compose
from bnrecon.reporting.result import RunResult
from bnrecon.run.naming import run_folder


def times(result: RunResult) -> dict:
    """Seconds of the layers of a run's first seed, and of what comes before and after."""
    seed = result.seeds[0]
    return {
        "data": result.data.name,
        "target": result.config["target"]["name"],
        "width": result.config["target"]["width"],
        "epochs": result.config["train"]["epochs"],
        "parameters": result.target.parameters,
        "features": result.config["features"]["name"],
        "device": result.device,
        "target_accuracy": result.target.accuracy,
        "source_accuracy": seed.accuracy,
        "source_images": result.evaluation.images,
        "training_seconds": result.target.seconds,
        "rebuilding_seconds": seed.solving_seconds,
        "testing_seconds": seed.seconds - seed.solving_seconds,
        "layer_seconds": sum(layer.seconds for layer in seed.layers),
        "layers": [
            {
                "name": layer.name,
                "n": layer.equations,
                "c1": layer.width,
                "seconds": layer.seconds,
                "iterations": layer.iterations,
                "residual": layer.residual,
                "error": layer.relative_error,
                "converged": layer.converged,
            }
            for layer in seed.layers
        ],
    }


def run(options: list[str]) -> int:
    """Do the run; its own output goes to standard error, the JSON to standard output."""
    with contextlib.redirect_stdout(sys.stderr):
        code = main.main(["run", *options])
    if code == exit_codes.DONE:
        folder = run_folder(compose(options))
        print(json.dumps(times(RunResult.read(folder / "result.json")), indent=1))
    return code


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    sys.exit(run(sys.argv[1:]))
