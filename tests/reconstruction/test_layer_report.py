"""When a layer counts as rebuilt: relative to its own weight, in the network's own precision."""

import pytest
import torch
from torch import nn

from bnrecon import FeatureSpec, reconstruct
from bnrecon.reconstruction.layer_report import output_error
from bnrecon.reconstruction.planning import plan_layers


@pytest.mark.parametrize(("share", "converged"), [(0.9, True), (1.5, False)])
def test_outputs_may_be_off_by_epsilon_and_no_more(share, converged, monkeypatch):
    monkeypatch.setattr("bnrecon.reconstruction.layer_report.output_error", lambda *_: share * 0.01)
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 3).double().eval()
    spec = FeatureSpec("id_cond", activation="tanh", epsilon=0.01)
    (report,) = reconstruct(model, spec, images=torch.rand(4, 3, 6, 6).double()).layers
    assert report.converged == converged
    assert ("an output is off by 1.5e-02" in report.diagnosis) == (not converged)


@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("folded", [False, True])
def test_the_error_of_outputs_is_that_of_layer_and_normalization(dilation, folded):
    """Of an exact layer rounding; of one whose last shift is off by 3, that."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3, dilation=dilation)]
    if folded:
        norm = nn.BatchNorm2d(4)
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2)
        layers.append(norm)
    model = nn.Sequential(*layers).double().eval()
    plan = plan_layers(model, "he_normal")
    source = reconstruct(model).network[0]
    largest = torch.ones(3, dtype=torch.float64)
    assert output_error(source, plan.layers[0].found, largest) < 1e-8
    with torch.no_grad():
        source.second_norm.bias += 3
    assert output_error(source, plan.layers[0].found, largest) == pytest.approx(3)


def test_the_rank_of_a_layer_of_groups_is_the_smallest():
    """Of strict sparse features some are empty, in one group more than in another."""
    torch.manual_seed(0)
    model = nn.Conv2d(6, 6, 3, groups=3).double().eval()
    spec = FeatureSpec("sparse_he_normal", strict=True, width=40, allow_below_minimum=True)
    (layer,) = plan_layers(model, spec).layers
    weights = [pair.weights() for pair in layer.draw_groups()]
    matrices = [torch.einsum("olhw,lj->ohwjl", b, a).flatten(0, 3).double() for a, b in weights]
    ranks = [int(torch.linalg.matrix_rank(matrix)) for matrix in matrices]
    assert len(set(ranks)) > 1
    assert reconstruct(model, spec).layers[0].rank == min(ranks)
