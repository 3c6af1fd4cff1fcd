"""Pruned sources: derived errors, and a table from any finished tasks."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import betainc, gammaln

from bnrecon.construction.two_layer import linear_system
from bnrecon.operators.khatri_rao import KhatriRao
from bnrecon.solvers.pruning import prune
from bnrecon.solvers.spec import SolverSpec
from bnrecon.studies.burkholz2024 import pruned
from bnrecon.studies.burkholz2024.pruned_limits import (
    least_error,
    magnitude_error,
    random_error,
    refit_error,
)


def finished(method, losses, seeds=3):
    """A task's rows: one loss per share, slightly different between seeds."""
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
            "images": 10_000,
            "predicted_otherwise": 3,
            "source_images": 64,
        }
        for share, loss in losses.items()
        for seed in range(seeds)
    )


def test_random_features_have_the_error_of_a_random_subspace():
    generator = np.random.default_rng(0)
    matrix, target = generator.normal(size=(400, 300)), generator.normal(size=400)
    wanted = np.linalg.lstsq(matrix, target, rcond=None)[0]
    error = np.linalg.norm(matrix @ wanted - target) / np.linalg.norm(target)
    assert error == pytest.approx(random_error(0.75), rel=0.1)


@pytest.mark.parametrize("share", [1.35, 1.0, 0.9, 0.75, 0.5])
def test_pruning_by_magnitude_has_the_derived_error(share):
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


@pytest.mark.parametrize("oversampling", [1.25, 1.5, 3.0])
@pytest.mark.parametrize("share", [0.9, 0.5, 0.1])
def test_derived_errors_match_independent_normal_entries(share, oversampling):
    generator, n = np.random.default_rng(0), 200
    target = np.eye(n)[0]
    squares = []
    for _ in range(24):
        matrix = generator.normal(size=(n, round(oversampling * n))) / math.sqrt(n)
        x = np.linalg.lstsq(matrix, target, rcond=None)[0]
        kept = np.argsort(-abs(x) * np.linalg.norm(matrix, axis=0))[: round(share * n)]
        again = np.linalg.lstsq(matrix[:, kept], target, rcond=None)[0]
        residuals = [matrix[:, kept] @ scale - target for scale in (x[kept], again)]
        squares.append(np.square(residuals).sum(1))
    magnitude, refitted = np.sqrt(np.mean(squares, axis=0))
    assert magnitude == pytest.approx(magnitude_error(share, oversampling), rel=0.07)
    assert refitted == pytest.approx(refit_error(share, oversampling), rel=0.07)


def test_derived_errors_have_their_limits():
    for error in (
        random_error,
        *(lambda k, e=e: e(k, 1.5) for e in (magnitude_error, refit_error)),
    ):
        assert error(1e-9) == pytest.approx(1, abs=1e-3)  # no feature is kept
    assert refit_error(1.0, 1.5) == magnitude_error(1.5, 1.5) == 0


@pytest.mark.parametrize(("share", "oversampling"), [(0.9, 1.5), (0.5, 1.5), (0.3, 2.0)])
def test_one_choice_is_expected_at_the_least_error(share, oversampling):
    n = 400
    c1, k = round(oversampling * n), round(share * n)
    choices = gammaln(c1 + 1) - gammaln(k + 1) - gammaln(c1 - k + 1)
    least = least_error(share, oversampling)
    expected = choices + math.log(betainc((n - k) / 2, k / 2, least**2))
    assert expected / n == pytest.approx(0, abs=0.025)


def test_no_choice_of_a_small_system_is_far_below_the_least_error():
    generator = np.random.default_rng(0)
    matrix, target = generator.normal(size=(10, 15)), generator.normal(size=10)
    errors = []
    for index in itertools.combinations(range(15), 5):
        _, squares, *_ = np.linalg.lstsq(matrix[:, index], target, rcond=None)
        errors.append(math.sqrt(squares[0]) / np.linalg.norm(target))
    assert 0.5 * least_error(0.5, 1.5) < min(errors) < 0.5 * random_error(0.5)


def test_loss_is_small_where_its_whole_interval_is():
    rows = pd.concat(
        [
            finished("l1", {1.0: 0.0, 0.9: 0.098, 0.8: 0.3, 0.6: 0.0}),
            finished("random", {1.0: 0.2, 0.9: 0.0}),
            finished("weights", {0.9: 0.01, 0.8: 0.2}, seeds=1),
        ]
    )
    table = pruned.PART.summary(rows).set_index(["kept by", "kept / n"])["loss at most 0.1"]
    assert table["least L1 norm, refit"].to_dict() == {
        1.0: "yes",
        0.9: "undecided",
        0.8: "no",
        0.6: "yes",
    }
    assert table["the target's own weights (not random)"].to_dict() == {0.9: "yes", 0.8: "no"}


def test_one_seed_or_scattered_seeds_decide_nothing():
    rows = finished("refit", {0.9: 0.05}, seeds=1)
    assert pruned.PART.summary(rows)["loss at most 0.1"].tolist() == ["undecided"]
    rows = finished("refit", {0.9: 0.05})
    rows["accuracy"] -= [0.0, 0.0, 3.0]
    assert pruned.PART.summary(rows)["loss at most 0.1"].tolist() == ["undecided"]


def test_task_names_contain_the_activation_except_the_first():
    tasks = pruned.PART.tasks("laptop", ())
    names = [task.name for task in tasks]
    assert names[0] == "magnitude, seed 0"
    assert names[16] == "tanh, magnitude, seed 0"
    assert len(set(names)) == len(names) == 4 * 16
    assert not any("activation" in option for task in tasks[:16] for option in task.options)
