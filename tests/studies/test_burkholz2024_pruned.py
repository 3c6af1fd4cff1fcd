"""Pruned sources: what is derived about them, and a table and figure from whatever is finished."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import betainc, gammaln

from bnrecon.construction.two_layer import linear_system
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.reporting.figures import image, style
from bnrecon.solvers.pruning import prune
from bnrecon.solvers.spec import SolverSpec
from bnrecon.studies.burkholz2024 import pruned
from bnrecon.studies.burkholz2024.pruned_limits import (
    least_error,
    magnitude_error,
    random_error,
    refit_error,
)
from bnrecon.studies.burkholz2024.pruned_networks import rebuild

SMOKE = pruned.TARGETS["smoke"]


def finished(method, losses, seeds=3, images=10_000):
    """Rows as a task's: a loss for each share, a little apart between seeds."""
    return pd.DataFrame(
        {
            "method": method,
            "share": share,
            "seed": seed,
            "kept_over_n": share,
            "median_error": 0.1,
            "largest_error": 0.2,
            "layers": 17,
            "n": 2304,
            "target_accuracy": 90.0,
            "accuracy": 90.0 - loss - 0.001 * seed,
            "images": images,
            "predicted_otherwise": 3,
            "source_images": 64,
        }
        for share, loss in losses.items()
        for seed in range(seeds)
    )


def test_the_error_of_random_features_is_that_of_a_random_subspace():
    generator = np.random.default_rng(0)
    matrix, target = generator.normal(size=(400, 300)), generator.normal(size=400)
    wanted = np.linalg.lstsq(matrix, target, rcond=None)[0]
    error = np.linalg.norm(matrix @ wanted - target) / np.linalg.norm(target)
    assert error == pytest.approx(random_error(0.75), rel=0.1)


@pytest.mark.parametrize("share", [1.35, 1.0, 0.9, 0.75, 0.5])
def test_pruning_by_magnitude_leaves_the_error_that_is_derived(share):
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(864, 24, generator=generator).double() for _ in range(2))
    weight = torch.randn(24, 24, generator=generator).double()
    system, count = linear_system(KhatriRao(first, second), weight), round(share * 576)
    error, after = (
        prune(system, SolverSpec(), count, method).report.relative_residual
        for method in ("magnitude", "refit")
    )
    assert error == pytest.approx(magnitude_error(share, 1.5), rel=0.12)
    if share < 1:
        assert after == pytest.approx(refit_error(share, 1.5), rel=0.15)


@pytest.mark.parametrize(("share", "oversampling"), [(0.9, 1.5), (0.5, 1.5), (0.3, 2.0)])
def test_at_the_least_error_one_choice_is_expected(share, oversampling):
    n = 400
    c1, k = round(oversampling * n), round(share * n)
    choices = gammaln(c1 + 1) - gammaln(k + 1) - gammaln(c1 - k + 1)
    least = least_error(share, oversampling)
    expected = choices + math.log(betainc((n - k) / 2, k / 2, least**2))
    assert expected / n == pytest.approx(0, abs=0.025)


def test_no_choice_of_a_small_system_falls_far_below_the_least_error():
    generator = np.random.default_rng(0)
    matrix, target = generator.normal(size=(10, 15)), generator.normal(size=10)
    errors = []
    for index in itertools.combinations(range(15), 5):
        _, left, *_ = np.linalg.lstsq(matrix[:, index], target, rcond=None)
        errors.append(math.sqrt(left[0]) / np.linalg.norm(target))
    assert 0.5 * least_error(0.5, 1.5) < min(errors) < 0.5 * random_error(0.5)


@pytest.mark.parametrize("method", ["random", "weights"])
def test_a_single_finished_task_is_summarized_and_drawn(method, tmp_path):
    rows = rebuild(method, [0.9, 0.6], 0, (*SMOKE, f"outputs={tmp_path}"))
    np.testing.assert_allclose(rows["kept_over_n"], [0.9, 0.6], atol=0.01)
    assert (rows["median_error"] < rows["largest_error"]).all()
    assert rows["median_error"].is_monotonic_increasing
    table = pruned.summary(rows)
    assert len(table) == 2
    assert "64 images a row" in pruned.caption(rows)
    with style():
        assert image(pruned.draw(rows), "png")[1:4] == b"PNG"


def test_the_answer_is_the_smallest_share_from_which_on_the_loss_stays_small():
    rows = pd.concat(
        [
            finished("l1", {1.0: 0.0, 0.9: 0.098, 0.8: 0.3, 0.6: 0.0}),
            finished("random", {1.0: 0.2, 0.9: 0.0}),
            finished("weights", {0.9: 0.01}, seeds=1),
        ]
    )
    before, _, answer = pruned.caption(rows).rpartition("Smallest share")
    assert "instead of drawing 0.9 n: -0.10 ± 0.00 (n=3) by least L1 norm, refit. " in before
    assert "least L1 norm, refit 0.9 n (1 n)" in answer
    assert "random" not in answer
    assert "the target's own weights 0.9 n." in answer


def test_without_a_small_loss_the_answer_says_so():
    assert "none of those tried" in pruned.caption(finished("refit", {0.9: 5.0}))
