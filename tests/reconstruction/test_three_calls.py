"""Plan, solve and assemble as separate calls, also for some layers, and their reports."""

import dataclasses
import json

import pytest
import torch
from networks import NETWORKS, outputs, randomize
from torch import nn

import bnrecon
from bnrecon.features.matrix import feature_operator
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction import (
    LayerReport,
    assemble,
    gather,
    layer_report,
    plan_layers,
    reconstruct,
    solve_layer,
)
from bnrecon.reconstruction.assembly import build_layer
from bnrecon.reconstruction.collapse import LayerErrors, collapse_layer
from bnrecon.reconstruction.source_file import collapse, load_source, source_layers
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.solvers import factorization
from bnrecon.solvers.spec import SolverSpec
from bnrecon.targets.models import resnet

SHAPE = NETWORKS["vgg"][1]


@pytest.fixture(scope="module")
def model():
    return randomize(NETWORKS["vgg"][0](), SHAPE)


def solve_all(plan):
    return {layer.name: solve_layer(layer) for layer in plan.layers}


def test_three_calls_match_the_one_call(model):
    images = torch.randn(16, *SHAPE, generator=torch.Generator().manual_seed(1))
    spec = FeatureSpec("he_uniform", excess=7, activation="relu", margin=4.0)
    plan = plan_layers(model, spec, SolverSpec("matrix_free"), seed=3, images=[images])
    moments = gather(plan.model, [layer.folded for layer in plan.layers], [images])
    by_calls = assemble(plan, solve_all(plan), moments)
    at_once = reconstruct(model, spec, solver="matrix_free", seed=3, images=images)
    assert torch.equal(outputs(by_calls.network, SHAPE), outputs(at_once.network, SHAPE))
    for ours, theirs in zip(by_calls.layers, at_once.layers, strict=True):
        same = dataclasses.replace(ours.solution, seconds=theirs.solution.seconds)
        assert dataclasses.replace(ours, solution=same) == theirs
    assert by_calls.difference is None
    assert at_once.difference is not None


@pytest.mark.parametrize("width", ["minimum", "maximum"])
def test_one_factorization_solves_a_layer_of_several_networks(width, monkeypatch):
    made = []
    factorize = factorization.factorize
    monkeypatch.setattr(factorization, "factorize", lambda m: made.append(m.shape) or factorize(m))
    networks = [randomize(nn.Sequential(nn.Conv2d(3, 4, 3)), (3, 8, 8)) for _ in range(3)]
    plans = [plan_layers(network, FeatureSpec(width=width), seed=5) for network in networks]
    solutions = bnrecon.solve_layers([plan.layers[0] for plan in plans])
    assert made == [(108, 108)]
    for plan, network, solution in zip(plans, networks, solutions, strict=True):
        rebuilt = assemble(plan, {"0": solution})
        assert rebuilt.layers[0].converged
        assert rebuilt.layers[0].relative_error < 1e-10
        ours, theirs = (outputs(one, (3, 8, 8)) for one in (rebuilt.network, network))
        assert torch.allclose(ours, theirs, atol=1e-3)  # float32, and a square system's scales
    other = plan_layers(networks[0], FeatureSpec(width=width), seed=6)
    with pytest.raises(UserError, match=r"layer 0: seed, .* not the same"):
        bnrecon.solve_layers([plans[0].layers[0], other.layers[0]])
    other = plan_layers(networks[0], FeatureSpec(width=width), "lbfgs", seed=5)
    with pytest.raises(UserError, match="layer 0: solver=lbfgs"):
        bnrecon.solve_layers(other.layers)


def test_plan_solves_and_changes_nothing(model, monkeypatch):
    monkeypatch.setattr("bnrecon.reconstruction.solving.solve", lambda *_: 1 / 0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan_layers(model, FeatureSpec(width="minimum"))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_missing_or_foreign_solution_is_refused(model):
    plan = plan_layers(model)
    solutions = solve_all(plan)
    first = plan.layers[0].name
    with pytest.raises(UserError, match=f"solutions: missing for layer {first};"):
        assemble(plan, {name: s for name, s in solutions.items() if name != first})
    names = ", ".join(layer.label for layer in plan.layers[:3])
    with pytest.raises(UserError, match=f"solutions: missing for {names}"):
        assemble(plan, {})
    with pytest.raises(UserError, match=f"layer {first}: its solution has .* scales, the layer"):
        assemble(plan_layers(model, FeatureSpec(excess=1)), solutions)


def test_solution_for_other_features_is_not_converged(model):
    solutions = solve_all(plan_layers(model, seed=0))
    plan = plan_layers(model, seed=1)
    rebuilt = assemble(plan, solutions)
    assert not any(layer.converged for layer in rebuilt.layers)
    assert all(layer.relative_error > 0.1 for layer in rebuilt.layers)
    assert all("another system" in layer.diagnosis for layer in rebuilt.layers)
    for report, layer in zip(rebuilt.layers, plan.layers, strict=True):
        matrix = feature_operator(layer.draw(), torch.float64, torch.device("cpu"))
        wanted = layer.folded.target.rows().flatten()
        difference = matrix.matvec(solutions[layer.name].scale) - wanted
        assert report.residual == pytest.approx(float(difference.norm() / wanted.norm()))


@pytest.mark.parametrize("skip", ["none", "inner", "outer"])
def test_error_left_by_elimination_is_explained(skip, monkeypatch):
    """Second scales are recovered below n features, with any skip connection."""
    errors = LayerErrors(1e-6, 1e-6, 1e-6, 1e-6, 0)
    monkeypatch.setattr(layer_report, "layer_errors", lambda *_: errors)
    (layer,) = plan_layers(torch.nn.Linear(4, 4).eval(), FeatureSpec(width=14, skip=skip)).layers
    report = build_layer(layer, solve_layer(layer)).report
    assert not report.converged
    assert report.diagnosis == layer_report.UNREACHED_PIVOT


def test_solver_error_names_the_layer(model):
    plan = plan_layers(model, FeatureSpec("sparse_he_normal", strict=True), SolverSpec("lu"))
    with pytest.raises(RuntimeError, match=r"^layer .*: the .* system is singular") as error:
        solve_all(plan)
    assert "; take more features (oversampling=1.5)" in str(error.value)


def test_report_is_the_row_in_result_json():
    (report,) = reconstruct(nn.Conv2d(4, 6, 3, groups=2).eval()).layers
    limited = dataclasses.replace(report.solution, at_limit=True)
    report = dataclasses.replace(report, solution=limited)
    row = json.loads(json.dumps(report.to_json()))
    assert LayerReport.from_json(row) == report
    assert row["groups"] == 2
    assert row["arithmetic"] == report.precision == report.solution.precision
    assert (row["residual"], row["oversampling"]) == (report.residual, report.oversampling)
    del row["groups"], row["at_limit"]  # absent where there is one group, and no limit was reached
    single = LayerReport.from_json(row)
    assert (single.solver, single.groups, single.solution.at_limit) == (report.solver, 1, False)
    assert not {"groups", "at_limit"} & single.to_json().keys()


def test_results_of_inference_mode_can_be_trained(model, tmp_path):
    with torch.inference_mode():
        images = torch.randn(4, *SHAPE)
        rebuilt = reconstruct(model, images=images)
        rebuilt.save(tmp_path / "source.safetensors")
        plan = plan_layers(model)
        built = [
            rebuilt.network,
            assemble(plan, solve_all(plan)).network,
            load_source(tmp_path / "source.safetensors", model),
            collapse(rebuilt.network),
            collapse_layer(next(iter(source_layers(rebuilt.network).values()))),
        ]
    kernel = built.pop().weight
    assert not kernel.is_inference()
    for network in built:
        network(torch.randn(4, *SHAPE)).sum().backward()
        assert all(p.grad is not None for p in network.parameters() if p.requires_grad)


def test_file_of_another_model_is_refused(tmp_path):
    def network(width, inputs=3):
        return nn.Sequential(nn.Linear(inputs, width), nn.LayerNorm(width), nn.Linear(width, 2))

    path = bnrecon.reconstruct(network(4).eval()).save(tmp_path / "source.safetensors")
    last_norm = network(4)
    last_norm[1] = nn.LayerNorm((1, 4))
    for other in (network(5), network(4, 2), last_norm):
        with pytest.raises(RunError, match=r"draws other features|is of shape"):
            bnrecon.load_source(path, other)


def test_plan_of_some_layers_keeps_the_rest(tmp_path):
    torch.manual_seed(0)
    model = resnet((3, 8, 8), 10, depth=50, width=4, stem="imagenet").eval()
    plan = bnrecon.plan_layers(model, "sign")
    small = [layer for layer in plan.layers if layer.shape.equations <= 200]
    assert 0 < len(small) < len(plan.layers)
    solutions = {layer.name: bnrecon.solve_layer(layer) for layer in small}
    rebuilt = bnrecon.assemble(dataclasses.replace(plan, layers=small), solutions)
    names = {layer.name for layer in small}
    assert set(source_layers(rebuilt.network)) == names
    assert {layer.name for layer in rebuilt.layers} == names
    kept = {name for name, part in rebuilt.network.named_modules() if type(part) is torch.nn.Conv2d}
    assert {layer.name for layer in plan.layers} - names - {"fc"} <= kept
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        for network in (rebuilt.network, loaded):
            torch.testing.assert_close(network(images), model(images), rtol=1e-4, atol=1e-5)
