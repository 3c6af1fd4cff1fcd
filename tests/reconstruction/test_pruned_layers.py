"""Layers that keep the scales of a share of their features, and their reports."""

import json

import pytest
import torch
from torch import nn

from bnrecon import FeatureSpec, SolverSpec, load_source, reconstruct
from bnrecon.features.spec import PRUNINGS
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.reconstruction.report import LayerReport
from bnrecon.reconstruction.source_file import source_layers
from bnrecon.runtime.errors import UserError


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3, groups=2)).eval()


@pytest.mark.parametrize("method", PRUNINGS)
def test_pruned_scales_are_zero_and_kept_ones_counted(method):
    rebuilt = reconstruct(network(), FeatureSpec(keep=0.6, pruning=method))
    sources = source_layers(rebuilt.network).values()
    for report, layer in zip(rebuilt.layers, sources, strict=True):
        assert report.kept == round(0.6 * report.width)
        nonzero = int((layer.first_norm.weight != 0).sum())
        assert nonzero == report.groups * report.kept
        assert 1e-3 < report.relative_error < 0.6
        assert not report.converged
        assert f"{method} keeps {report.kept} of {report.width} features" in report.diagnosis
        row = json.loads(json.dumps(report.to_json()))
        assert LayerReport.from_json(row).kept == report.kept


@pytest.mark.parametrize("method", ["refit", "iterative", "l1"])
def test_n_features_suffice_for_the_same_outputs(method):
    images = torch.randn(4, 3, 9, 9)
    spec = FeatureSpec(oversampling=2, keep=0.5, pruning=method)
    rebuilt = reconstruct(network(), spec, images=images)
    assert all(report.converged and report.kept == report.equations for report in rebuilt.layers)
    assert rebuilt.difference.largest < 1e-3 * rebuilt.difference.size


def test_pruned_source_is_loaded_from_its_file(tmp_path):
    model, images = network(), torch.randn(4, 3, 9, 9)
    rebuilt = reconstruct(model, FeatureSpec(keep=0.5, pruning="refit"))
    loaded = load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    torch.testing.assert_close(loaded(images), rebuilt.network(images))


def test_impossible_pruning_is_refused_before_any_work(monkeypatch):
    monkeypatch.setattr("bnrecon.reconstruction.solving.prune", lambda *_: pytest.fail("solved"))
    with pytest.raises(UserError, match="layer 0: keep: 105 features for 108 equations"):
        reconstruct(network(), FeatureSpec(width=105, keep=0.5, pruning="refit"))
    for skip in ("inner", "outer"):
        spec = FeatureSpec(width=15, skip=skip, keep=0.5, pruning="refit")
        with pytest.raises(UserError, match="keep: 15 features for 16 equations have none to"):
            plan_layers(nn.Linear(4, 4).eval(), spec)
    spec = FeatureSpec(keep=0.5, pruning="l1")
    with pytest.raises(UserError, match=r"^pruning=l1 does not use solver=minimum_norm"):
        reconstruct(network(), spec, solver=SolverSpec("minimum_norm"))
