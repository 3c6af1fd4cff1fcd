"""Whole networks of which each layer keeps a share of its features."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence

import pandas as pd
import torch

from bnrecon.construction.residual import layer_system
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.assembly import assemble
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.reconstruction.source_file import collapse
from bnrecon.reproduction.trainings import obtain
from bnrecon.run.evaluation import evaluate_source
from bnrecon.solvers.base import Solution
from bnrecon.solvers.pruning import prune_to, refit
from bnrecon.solvers.spec import SolverSpec

RANDOM, WEIGHTS = "random", "weights"  # beside the options of features.pruning
OVERSAMPLING = 1.5
SOURCE_IMAGES = 64  # of each row, through the real source network


def rebuild(
    method: str, shares: Sequence[float], seed: int, options: Sequence[str]
) -> pd.DataFrame:
    """A row for each share: errors of the layers, and accuracy.

    Args:
        method: one of ``PRUNINGS``; ``random``: the first features and least squares, which is
            drawing fewer of them; ``weights``: the target's own weights (id_cond) by magnitude.
        shares: kept features over n.
        seed: of the features.
        options: overrides of the run whose target is rebuilt.
    """
    trained, data, device = obtain(options)
    started = time.monotonic()
    features = FeatureSpec("he_normal", oversampling=OVERSAMPLING)
    if method == WEIGHTS:
        features = FeatureSpec("id_cond", width="maximum")
    plan = plan_layers(trained.network, features, seed=seed)
    equations = [layer.shape.equations for layer in plan.layers]
    solutions = [dict[str, Solution]() for _ in shares]
    for layer in plan.layers:
        solved = _solve(layer, method, shares, device)
        for of_share, solution in zip(solutions, solved, strict=True):
            of_share[layer.name] = solution
    config = trained.about["config"]
    rows = []
    seconds = time.monotonic() - started
    for share, of_share in zip(shares, solutions, strict=True):
        source = assemble(plan, of_share)
        outcome = evaluate_source(
            source.network, collapse(source.network), trained.network, data, device, SOURCE_IMAGES
        )
        errors = [layer.relative_error for layer in source.layers]
        kept = sum(int((solution.scale != 0).sum()) for solution in of_share.values())
        rows.append(
            {
                "method": method,
                "network": f"{config['target']['name']} on {config['data']['name']}",
                "activation": config["target"]["activation"],
                "share": share,
                "seed": seed,
                "kept_over_n": kept / sum(equations),
                "median_error": statistics.median(errors),
                "largest_error": max(errors),
                "layers": len(errors),
                "n": max(equations),
                "target_accuracy": trained.about["accuracy"],
                "accuracy": outcome.accuracy,
                "images": outcome.images,
                "predicted_otherwise": outcome.predictions.differ,
                "source_images": outcome.source_images,
                "largest_logit_difference": outcome.largest_logit_difference,
                "solving_seconds": seconds,
            }
        )
    return pd.DataFrame(rows)


def _solve(
    layer: PlannedLayer, method: str, shares: Sequence[float], device: torch.device
) -> Iterator[Solution]:
    """A layer's solutions, one for each share."""
    system = layer_system(layer.found.target, layer.draw(), device, orthogonal=False)
    counts = [max(1, round(share * layer.shape.equations)) for share in shares]
    if method == RANDOM:
        return (refit(system, SolverSpec(), torch.arange(count, device=device)) for count in counts)
    return prune_to(system, SolverSpec(), counts, "magnitude" if method == WEIGHTS else method)
