"""A plan counts the solver's memory: solver and features have to fit together."""

import pytest
from torch import nn

from bnrecon.features import FeatureSpec
from bnrecon.reconstruction import plan_layers, reconstruct, solve_layer
from bnrecon.reconstruction import planning as planning_module
from bnrecon.runtime.errors import RunError
from bnrecon.solvers import SOLVERS

SQUARE = FeatureSpec(width="maximum")


def linear_layers(count):
    return nn.Sequential(*(nn.Linear(40, 40) for _ in range(count))).eval()


@pytest.fixture
def free(monkeypatch):
    """Set how much free memory a plan sees."""

    def limit(size):
        monkeypatch.setattr(planning_module, "available_memory", lambda _: size)

    return limit


@pytest.mark.parametrize("solver", ["lu", "svd_lbfgs", "least_squares"])
def test_plan_counts_the_matrix_a_solver_factorizes(solver):
    (layer,) = plan_layers(linear_layers(1), SQUARE, solver).layers
    need = SOLVERS[solver].memory(1600, 1600)
    assert layer.solver_memory == need
    assert layer.working_bytes > need
    memory = plan_layers(linear_layers(3), SQUARE, solver).memory
    assert memory == layer.working_bytes + 3 * layer.stored_bytes


def test_auto_counts_the_solver_it_will_choose(free):
    free(16 * 10**9)
    (layer,) = plan_layers(nn.Conv2d(64, 64, 3).eval(), SQUARE).layers
    assert layer.choice.solver == "refined"
    assert layer.solver_memory == SOLVERS["refined"].memory(36_864, 36_864) > 5 * 10**9
    (layer,) = plan_layers(nn.Conv2d(64, 64, 3).eval()).layers
    assert layer.choice.solver == "matrix_free"
    assert layer.solver_memory < 10**8


@pytest.mark.parametrize(
    "features",
    [
        FeatureSpec("ortho_cond"),
        FeatureSpec("id_cond"),
        FeatureSpec("id_cond", width="minimum"),
        FeatureSpec("id_cond", width="minimum", skip="outer"),
    ],
    ids=str,
)
def test_auto_solves_patterned_features_as_planned(features):
    plan = plan_layers(nn.Conv2d(4, 4, 3).eval(), features)
    planned = [layer.choice.solver for layer in plan.layers]
    assert [solve_layer(layer).report.solver for layer in plan.layers] == planned


def test_auto_factorizes_only_if_it_fits_with_all_features(free):
    whole = plan_layers(linear_layers(3), SQUARE)
    assert {layer.choice.solver for layer in whole.layers} == {"lu"}
    free(whole.memory)
    assert plan_layers(linear_layers(3), SQUARE).memory == whole.memory
    free(whole.memory - 1)
    less = plan_layers(linear_layers(3), SQUARE)
    assert {layer.choice.solver for layer in less.layers} == {"matrix_free"}
    assert less.memory < whole.memory
    free(SOLVERS["lu"].memory(1600, 1600))  # enough for the solver alone
    assert {layer.choice.solver for layer in plan_layers(linear_layers(3), SQUARE).layers} == {
        "matrix_free"
    }


def test_solver_beyond_memory_is_refused_before_any_work(free):
    need = plan_layers(linear_layers(30), SQUARE, "lu").memory
    free(need - 1)
    with pytest.raises(
        RunError,
        match=r"layer 0: solver lu needs 87.6 MB on cpu beside .* MB for features, .* free; ",
    ):
        plan_layers(linear_layers(30), SQUARE, "lu")
    kept = plan_layers(linear_layers(30), SQUARE, "lu", unsupported="keep")
    assert len(kept.layers) == 29
    assert kept.memory < need
    free(need)
    assert len(plan_layers(linear_layers(30), SQUARE, "lu").layers) == 30


def test_refit_with_fewer_features_counts_both_systems():
    """Two thirds of 1.5 n are n, a square system."""
    spec = FeatureSpec(oversampling=1.5, keep=2 / 3, pruning="refit")
    (layer,) = plan_layers(linear_layers(1), spec).layers
    assert layer.solver_memory == SOLVERS["lu"].memory(1600, 1600)


def test_systems_solved_in_one_call_are_counted_together():
    (layer,) = plan_layers(nn.Conv2d(960, 960, 3, groups=960).eval()).layers
    matrix = 8 * 9 * layer.width
    assert layer.solver_memory >= 3 * 960 * matrix
    (wide,) = plan_layers(nn.Conv2d(4096, 4096, 3, groups=1024).eval()).layers
    assert wide.solver_memory >= 3 * 32 * 2**20


@pytest.mark.parametrize("storage", ["memory", "regenerate"])
def test_selected_features_are_solved_like_a_layers(storage):
    """Of the 109 that are kept, 108 suffice in any storage."""
    features = FeatureSpec(storage=storage, width=162, keep=109 / 162, pruning="refit")
    (layer,) = reconstruct(nn.Sequential(nn.Conv2d(3, 4, 3)).eval(), features).layers
    assert (layer.kept, layer.solver) == (109, "lu")
