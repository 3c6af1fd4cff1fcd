"""Networks changed after planning or rebuilding: followed, refused or named."""

import copy

import numpy as np
import pytest
import torch
from networks import Composed
from torch import nn

import bnrecon
from bnrecon import FeatureSpec
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.targets.noisy_batchnorm import NoisyBatchNorm1d


def chain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)).eval()


@pytest.fixture
def images():
    torch.manual_seed(1)
    return 2 * torch.randn(64, 4)


def changed_seed(network):
    network.load_state_dict(bnrecon.reconstruct(chain(), seed=1).network.state_dict())


def changed_head(network):
    network[2] = nn.Linear(4, 7)


def swapped(network):
    network[0], network[2] = network[2], network[0]


@pytest.mark.parametrize("change", [changed_seed, changed_head, swapped])
def test_source_with_other_features_is_saved_only_in_full(change, images, tmp_path):
    rebuilt = bnrecon.reconstruct(chain())
    change(rebuilt.network)
    with pytest.raises(UserError):
        rebuilt.save(tmp_path / "source")
    assert not (tmp_path / "source").exists()
    assert rebuilt.save(tmp_path / "source", full=True).exists()


def test_collapse_refuses_undrawn_weights_and_hooks():
    rebuilt = bnrecon.reconstruct(chain(), "sign")
    rebuilt.network[0].register_forward_hook(lambda _module, _inputs, output: 2 * output)
    with pytest.raises(UserError, match="hooks"):
        bnrecon.collapse(rebuilt.network)
    with pytest.raises(UserError, match=r"Reconstruction"):
        bnrecon.collapse(rebuilt)
    other = bnrecon.reconstruct(chain(), "sign", seed=1)
    other.network.load_state_dict(bnrecon.reconstruct(chain(), "sign").network.state_dict())
    for trainable in (False, True):
        with pytest.raises(UserError, match="not those that were drawn"):
            bnrecon.collapse(other.network, trainable)


def test_half_precision_keeps_the_drawn_features(tmp_path, images):
    rebuilt = bnrecon.reconstruct(chain())
    rebuilt.network.half()
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source"), chain())
    torch.testing.assert_close(loaded(images), chain()(images), rtol=0, atol=0.05)


def test_first_normalization_acts_in_eval_as_in_training(images):
    network = bnrecon.reconstruct(chain(), images=images).network
    expected = network(images)
    ablated = copy.deepcopy(network)
    ablated[0].first_norm.register_forward_hook(lambda _module, _inputs, output: 0 * output)
    assert (ablated(images) - expected).abs().max() > 0.1
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.train()  # batch statistics, as in test-time adaptation
    network(images)
    assert network[0].first_norm.num_batches_tracked == 1
    assert network[0].second_norm.num_batches_tracked == 1


def test_pruned_scales_are_those_of_the_last_step(images):
    layer = bnrecon.reconstruct(chain()).network[0]
    nn.utils.prune.random_unstructured(layer.first_norm, "weight", 0.2)
    with torch.no_grad():
        layer.first_norm.weight_orig.mul_(2)
    collapsed = bnrecon.collapse(layer)(images)
    parts = layer.second_norm(layer.second(layer.first_norm(layer.first(images))))
    torch.testing.assert_close(layer(images), parts)
    torch.testing.assert_close(collapsed, parts)


def test_hooks_need_both_convolutions(images):
    for network in (
        bnrecon.reconstruct(chain(), FeatureSpec(storage="regenerate")).network,
        bnrecon.collapse(bnrecon.reconstruct(chain()).network, trainable=True),
    ):
        network[0].first_norm.register_forward_hook(lambda _module, _inputs, output: output)
        with pytest.raises(RuntimeError, match="hooks"):
            network(images)


def test_changed_eps_is_saved(images, tmp_path):
    rebuilt = bnrecon.reconstruct(chain(), images=images)
    for module in rebuilt.network.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.eps = 1e-2
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source"), chain())
    assert (rebuilt.network(images) - chain()(images)).abs().max() > 1e-3
    torch.testing.assert_close(loaded(images), rebuilt.network(images))


@pytest.mark.parametrize("storage", ["regenerate", "disk"])
def test_redrawn_features_refuse_the_state_of_another_seed(images, storage):
    spec = FeatureSpec(storage=storage)
    first, again, other = (
        bnrecon.reconstruct(chain(), spec, seed=seed).network for seed in (0, 0, 1)
    )
    state = {name: value + 0.5 * ("weight" in name) for name, value in first.state_dict().items()}
    again.load_state_dict(state)
    first.load_state_dict(state)
    torch.testing.assert_close(again(images), first(images))
    for _ in range(2):  # a failed attempt must not let the next one pass
        with pytest.raises(RuntimeError, match="0 was rebuilt from other features"):
            other.load_state_dict(state)
    other.load_state_dict({name: value for name, value in state.items() if "drawn" not in name})


def test_layer_named_rest_is_loaded(tmp_path):
    model = nn.Sequential()
    model.add_module("rest", nn.Linear(4, 3))
    rebuilt = bnrecon.reconstruct(model.eval())
    x = torch.randn(5, 4)
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source"), model)
    torch.testing.assert_close(loaded(x), rebuilt.network(x))


def test_source_is_not_loaded_into_another_architecture(tmp_path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    path = bnrecon.reconstruct(model).save(tmp_path / "source")
    with pytest.raises(RunError, match="1 is ReLU, where a BatchNorm was"):
        bnrecon.load_source(path, nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_model_changed_after_planning_is_refused(dtype):
    model = chain().to(dtype)
    plan = bnrecon.plan_layers(model)
    solutions = {layer.name: bnrecon.solve_layer(layer) for layer in plan.layers}
    bnrecon.assemble(plan, solutions)
    with torch.no_grad():
        model[2].bias.add_(0.1)
    with pytest.raises(UserError, match="layer 2: the model has changed"):
        bnrecon.assemble(plan, solutions)


@pytest.mark.parametrize(
    ("layer", "size"), [(nn.Conv1d(3, 8, 3, padding=1), (3, 8)), (nn.Linear(4, 8), (2, 8, 4))]
)
def test_folded_layer_refuses_inputs_its_batchnorm_read_differently(layer, size):
    model = nn.Sequential(layer, nn.BatchNorm1d(8)).eval()
    network = bnrecon.reconstruct(model).network
    for rebuilt in (network, bnrecon.collapse(network)):
        with pytest.raises(ValueError, match=r"second dimension|BatchNorm1d on a sequence"):
            rebuilt(torch.randn(size))


def test_weight_in_a_constant_is_detected_without_images():
    def penalize(self, x):
        return self.layer(x) + sum(p.abs().sum() for p in self.layer.parameters())

    with pytest.raises(UserError, match="read outside of the layer"):
        bnrecon.reconstruct(Composed(penalize, layer=nn.Linear(4, 4)).eval())


class Wrapped(nn.Module):
    """One output depends on whether the layers are linear; ``wrap`` makes the type of it."""

    def __init__(self, wrap):
        super().__init__()
        self.layers, self.wrap = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), wrap

    def forward(self, x):
        linear = isinstance(self.layers[0], nn.Linear)
        return self.layers[1](self.layers[0](x)), self.wrap(x * (2 if linear else 3))


def test_unknown_output_types_are_named_and_arrays_compared(images):
    for wrap, kind in (
        (lambda x: torch.distributions.Categorical(logits=x), "Categorical"),
        (lambda x: np.array(["words"] * len(x)), "ndarray"),
    ):
        notes = bnrecon.reconstruct(Wrapped(wrap).eval(), images=images).notes
        assert f"not compared: outputs of type {kind}" in notes
    with pytest.raises(RunError):
        bnrecon.reconstruct(Wrapped(lambda x: x.numpy()).eval(), images=images)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_trainable_network_never_computes_with_other_features(images, dtype):
    """Those of another seed that its source loads, or its source's original, or pruned ones."""
    network = bnrecon.reconstruct(chain().to(dtype)).network
    other = bnrecon.reconstruct(chain().to(dtype), seed=1).network
    x, copied = images.to(dtype), copy.deepcopy(network)
    shared, later = (bnrecon.collapse(each, trainable=True) for each in (network, copied))
    expected = shared(x)
    network.load_state_dict(other.state_dict())
    with torch.no_grad():
        network[0].first_norm.weight.mul_(2)
    torch.testing.assert_close(later(x), copied(x))  # it holds the features of its own weights
    torch.testing.assert_close(later(x), expected)
    if dtype == torch.float32:  # features in the memory of the weights are loaded with them
        torch.testing.assert_close(shared(x), network(x))
    else:
        with pytest.raises(RuntimeError, match="frozen weights have changed"):
            shared(x)
    pruned = bnrecon.collapse(copied := copy.deepcopy(other), trainable=True)
    torch.testing.assert_close(pruned(x), expected, rtol=1e-3, atol=1e-4)
    nn.utils.prune.l1_unstructured(copied[0].first, "weight", 0.5)
    nn.utils.prune.remove(copied[0].first, "weight")
    with pytest.raises(RuntimeError, match="frozen weights have changed"):
        pruned(x)
    with pytest.raises(RuntimeError, match="frozen weights have changed"):
        _ = copied[0].weight


def test_replaced_parts_are_called(images):
    class Adapted(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base, self.weight = base, base.weight

        def forward(self, x):
            return 2 * self.base(x)

    network = bnrecon.reconstruct(chain(), images=images).network
    adapted = copy.deepcopy(network)
    adapted[0].first = Adapted(adapted[0].first)
    layer = adapted[0]
    parts = layer.second_norm(layer.second(layer.first_norm(2 * layer.first.base(images))))
    torch.testing.assert_close(layer(images), parts)
    trainable = bnrecon.collapse(network, trainable=True)
    NoisyBatchNorm1d.convert(trainable, 8)
    with pytest.raises(RuntimeError, match="replaced parts"):
        trainable.train()(images)
