"""Arguments of `reconstruct`: wrong ones are named, and overflowing numbers are no success."""

import json
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from networks import Composed, chain, difference, images, randomize
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bnrecon
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.runtime import files
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.solvers.spec import SolverSpec


def small_network():
    torch.manual_seed(0)
    return randomize(chain(), (2, 6, 6))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"seed": -1}, "seed=-1: must be at least 0 and below"),
        ({"oversampling": float("nan")}, "oversampling=nan: must be above 0"),
        (
            {"features": FeatureSpec(excess=3), "oversampling": 2},
            "oversampling=2, excess=3: give one of",
        ),
        ({"unsupported": "ignore"}, "unsupported=ignore: Allowed: keep, raise"),
        ({"images": torch.zeros(0, 2, 6, 6)}, "images: there is no image in it"),
        (
            {"images": images(channels=3)},
            r"images of shape \(3, 6, 6\): the model does not take them",
        ),
        ({"images": images().to("meta")}, "images: they are on the meta device"),
        ({"images": torch.zeros(2, 5).long()}, "tokens cannot be compared: leave them out"),
        ({"features": len}, "features is builtin_function.* @bnrecon.register_features"),
        ({"features": images()}, r"features is Tensor; .*into images=\)"),
        ({"images": [images(), images() / 0]}, "images: some of their numbers are not finite"),
        (
            {"images": (1 / 0 for _ in range(2))},
            r"images: iterating over them raised an error \(ZeroDivisionError",
        ),
        ({"solver": SolverSpec("matrixfree")}, "solver=matrixfree: did you mean 'matrix_free'"),
        ({"solver": SolverSpec("lu"), "oversampling": 2}, "needs a square system"),
        (
            {"features": FeatureSpec(width=3)},
            "layer 0: 3 features are below the minimum width .* set allow_below_minimum=True",
        ),
    ],
)
def test_impossible_argument_is_named(arguments, named):
    with pytest.raises(UserError, match=named) as caught:
        bnrecon.reconstruct(small_network(), **arguments)
    assert len(str(caught.value)) < 400
    assert "features." not in str(caught.value)


def test_lack_of_memory_in_a_loader_is_not_the_loaders_mistake():
    """PyTorch's allocator raises a plain RuntimeError on the CPU."""
    with pytest.raises(RuntimeError, match="allocate memory"):
        bnrecon.reconstruct(small_network(), images=(torch.empty(2**55) for _ in range(2)))


def test_numpy_numbers_are_accepted_and_saved(tmp_path):
    model, spec = small_network(), FeatureSpec(excess=np.int64(3))
    rebuilt = bnrecon.reconstruct(model, spec, seed=np.int64(2))
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    assert torch.equal(loaded(images()), rebuilt.network(images()))
    assert json.loads(json.dumps(rebuilt.layers[0].to_json()))["width"] == 4 * 2 * 9 + 3


def test_unusable_file_or_model_is_named(tmp_path):
    model = nn.Linear(3, 4).eval()
    rebuilt = bnrecon.reconstruct(model)
    path = rebuilt.save(tmp_path / "source.safetensors")
    with pytest.raises(UserError, match="the model holds float16 parameters"):
        bnrecon.load_source(path, nn.Linear(3, 4).half().eval())
    frozen = nn.Linear(3, 4, bias=False).eval()
    weight = frozen._parameters.pop("weight").half()
    frozen.register_buffer("weight", weight.detach())
    with pytest.raises(UserError, match="its weight is float16: call"):
        bnrecon.reconstruct(frozen)
    full = rebuilt.save(tmp_path / "full.safetensors", full=True)
    assert set(load_file(full)) == set(rebuilt.network.state_dict())
    with pytest.raises(RunError, match=f"{full} was written with full=True"):
        bnrecon.load_source(full, model)
    files.write_tensors(tmp_path / "other.safetensors", {"a": torch.zeros(1)}, {"target": "vgg"})
    with pytest.raises(RunError, match=r"other\.safetensors holds no source network"):
        bnrecon.load_source(tmp_path / "other.safetensors", model)
    save_file(model.state_dict(), tmp_path / "own.safetensors")
    with pytest.raises(files.Damaged, match=r"own\.safetensors was not written by bnrecon"):
        bnrecon.load_source(tmp_path / "own.safetensors", model)


def test_empty_batches_are_skipped():
    x = images()
    whole = bnrecon.reconstruct(small_network(), images=x)
    parts = bnrecon.reconstruct(small_network(), images=[x[:0], x[:5], x[:0], x[5:]])
    for name, value in whole.network.state_dict().items():
        torch.testing.assert_close(parts.network.state_dict()[name], value)


def test_nonzero_outputs_for_a_zero_target_are_noted():
    """Zero weights and a skip connection that has to be cancelled, up to rounding."""
    model = nn.Conv2d(2, 3, 3, bias=False).eval()
    nn.init.zeros_(model.weight)
    rebuilt = bnrecon.reconstruct(model, FeatureSpec(skip="outer"), images=images())
    assert rebuilt.difference.size == 0 < rebuilt.difference.largest < 1e-4
    assert rebuilt.verified is False


def test_models_without_numbers_are_named():
    with pytest.raises(UserError, match=r"model is function; it must be a torch\.nn\.Module"):
        bnrecon.reconstruct(lambda x: x)
    with pytest.raises(UserError, match="model: some of its tensors are on the meta device"):
        bnrecon.reconstruct(nn.Linear(3, 2, device="meta").eval())
    lazy = nn.Sequential(nn.LazyConv2d(3, 3)).eval()
    with pytest.raises(UserError, match="0: a lazy module has no weights yet; run the network"):
        bnrecon.reconstruct(lazy, images=images())
    assert isinstance(lazy[0], nn.LazyConv2d)  # images have not initialized it


@pytest.mark.parametrize("what", ["weight", "bias"])
def test_non_finite_target_is_named(what):
    model = small_network()
    with torch.no_grad():
        getattr(model[3], what)[0] = float("nan")
    kind = {"weight": "weights", "bias": "bias"}[what]
    with pytest.raises(
        UserError, match=f"layer 3: its {kind}, normalization folded in, are not all finite"
    ):
        bnrecon.reconstruct(model)


def test_data_loader_of_pairs_gives_the_statistics_of_its_images():
    model, x = small_network(), images(12)
    whole = bnrecon.reconstruct(model, images=x)
    loader = DataLoader(TensorDataset(x, torch.arange(12)), batch_size=5)
    batches = bnrecon.reconstruct(model, images=loader)
    assert torch.allclose(
        whole.network[0].first_norm.running_var,
        batches.network[0].first_norm.running_var,
        rtol=1e-5,
    )
    assert batches.difference.images == 5
    assert batches.difference.largest < 1e-4 * batches.difference.size


def followed_by(then):
    """Layers followed by a function of their output."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    return Composed(lambda self, x: then(self, self.layers(x)), layers=layers).eval()


def rows():
    return torch.randn(20, 4, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("then", "named"),
    [
        (
            lambda self, y: y[:, : 3 if type(self.layers[0]) is nn.Linear else 2],
            r"outputs are of shape \(8, 2\) where the model's are \(8, 3\)",
        ),
        (
            lambda self, y: y * (1 if type(self.layers[0]) is nn.Linear else 5),
            "outputs differ by .* nothing is solved yet",
        ),
        (
            lambda self, y: y + self.layers[0].mine,
            r"does not run \(AttributeError: 'TrialLayer' object has no attribute 'mine'\)",
        ),
        (
            lambda self, y: y / (type(self.layers[0]) is nn.Linear),
            "outputs are not finite, the model's are",
        ),
    ],
    ids=["shape", "far off", "attribute", "not finite"],
)
def test_code_that_bypasses_layers_fails_before_any_is_solved(then, named):
    model = followed_by(then)
    model.layers[0].mine = 0.0
    with pytest.raises(RunError, match=named):
        bnrecon.plan_layers(model, images=rows())
    with pytest.raises(RunError, match=named):
        bnrecon.reconstruct(model, images=rows())


def test_dataclass_outputs_are_compared():
    @dataclass
    class Output:
        logits: torch.Tensor

    rebuilt = bnrecon.reconstruct(followed_by(lambda _, y: Output(y)), images=rows())
    assert 0 < rebuilt.difference.largest < 1e-5 * rebuilt.difference.size


def test_forward_with_gradients_runs_and_its_cache_is_usable():
    model = followed_by(lambda _, y: y)
    model.layers.append(Caching().eval())
    rebuilt = bnrecon.reconstruct(model, images=rows())
    assert rebuilt.difference.largest < 1e-5 * rebuilt.difference.size
    assert not hasattr(model.layers[-1], "seen")
    assert not rebuilt.network(rows()).is_inference()


class Caching(nn.Module):
    """Returns the gradient of its squared input, and remembers the input."""

    def forward(self, x):
        self.seen = x
        with torch.enable_grad():
            x = x.clone().requires_grad_()
            return torch.autograd.grad(x.square().sum(), x)[0]


@pytest.mark.parametrize("size", [0.0, 1e-30])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_images_without_range_are_refused_where_it_matters(size, activation):
    with pytest.raises(
        UserError,
        match=r"layer 0: on the images its inputs are at most .* too small to tell",
    ):
        bnrecon.reconstruct(
            small_network(), FeatureSpec(activation=activation), images=size * images()
        )
    assert bnrecon.reconstruct(small_network(), images=size * images()).layers[0].converged


@pytest.mark.parametrize("size", [1e-170, 1e200])
def test_weights_whose_squares_exceed_float64_are_refused(size):
    net = nn.Sequential(nn.Linear(4, 3)).double().eval()
    with torch.no_grad():
        net[0].weight.mul_(size)
    with pytest.raises(UserError, match="whose squares float64 does not hold"):
        bnrecon.reconstruct(net)


@pytest.mark.parametrize("where", ["weight", "images"])
def test_overflow_fails_and_is_not_converged(where):
    model, x = small_network(), images()
    if where == "weight":
        with torch.no_grad():
            model[0].weight.mul_(1e37)
            model[1].running_var.fill_(1e-3)
    else:
        x = 1e30 * x
    with pytest.raises((RunError, UserError), match="not finite"):
        bnrecon.reconstruct(model, images=x)


def test_double_precision_source_is_loaded(tmp_path):
    """Its weights and statistics exceed float32."""
    model, x = small_network().double(), images().double()
    with torch.no_grad():
        model[0].weight.mul_(1e30)
    rebuilt = bnrecon.reconstruct(model, images=x)
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "large.safetensors"), model)
    assert loaded(x).dtype == torch.float64
    assert difference(loaded, model, x) < 1e-8


def test_everything_but_normalizations_is_frozen_and_noted(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.PReLU(), nn.LayerNorm(6), nn.Bilinear(3, 3, 2), nn.Linear(6, 3)
    )
    model[3].forward = lambda x: x
    rebuilt = bnrecon.reconstruct(model.eval(), unsupported="keep")
    trainable = {name for name, value in rebuilt.network.named_parameters() if value.requires_grad}
    assert trainable == {
        f"{n}.{part}"
        for n in (0, 4)
        for part in ("first_norm.weight", "second_norm.weight", "second_norm.bias")
    } | {
        "2.weight",
        "2.bias",
    }
    assert any(
        "frozen too, as only normalizations stay trainable: 1.weight, 3.weight, 3.bias" in note
        for note in rebuilt.notes
    )
    assert model[1].weight.requires_grad
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    assert {name for name, value in loaded.named_parameters() if value.requires_grad} == trainable


def test_rounding_to_float32_counts_at_minimum_width():
    torch.manual_seed(3)
    model, layers = randomize(nn.Sequential(nn.Conv2d(8, 12, 3)), (8, 5, 5)), []
    for seed in (0, 1, 27, 37):
        layer = bnrecon.reconstruct(model, FeatureSpec(width="minimum"), seed=seed).layers[0]
        assert layer.converged == (
            layer.relative_error <= 1e-10 and layer.assembled_error <= 1e3 * 2.0**-23
        )
        layers.append(layer)
    rounded = [layer for layer in layers if layer.relative_error <= 1e-10 and not layer.converged]
    assert rounded
    assert all("rounding to float32 leaves" in layer.diagnosis for layer in rounded)


def test_as_many_layers_stay_in_memory_as_fit_together(monkeypatch):
    model = nn.Sequential(*(nn.Linear(width, width) for width in (24, 8, 24, 8))).eval()
    free = plan_layers(model, "he_normal").memory - 1
    monkeypatch.setattr("bnrecon.reconstruction.planning.available_memory", lambda device: free)
    with pytest.raises(UserError, match="the network's 4 layers need"):
        plan_layers(model, "he_normal")
    plan = plan_layers(model, "he_normal", unsupported="keep")
    assert [layer.folded.name for layer in plan.layers] == ["0", "1", "3"]
    assert any(
        note.startswith("2 is left as it is: with the other layers it does not fit")
        for note in plan.notes
    )


def test_mapping_batches_give_their_pixel_values():
    model, pixels = small_network(), images(6)
    whole = bnrecon.reconstruct(model, images=pixels)
    pairs = [{"image": pixels[:4]}, (pixels[4:], 0)]
    for batches in ({"pixel_values": pixels, "labels": 0}, pairs):
        rebuilt = bnrecon.reconstruct(model, images=batches)
        assert rebuilt.verified
        for one, other in zip(rebuilt.network.buffers(), whole.network.buffers(), strict=True):
            torch.testing.assert_close(one, other)
    with pytest.raises(UserError, match="a mapping of pixels; it must have pixel_values or image"):
        bnrecon.reconstruct(model, images={"pixels": pixels})


def test_pair_of_images_and_labels_is_not_read_as_two_batches():
    model, images, labels = nn.Linear(4, 3).eval(), torch.rand(8, 4), torch.zeros(8)
    for wrong in (labels, labels.long()):
        with pytest.raises(UserError, match=r"give images=\[\(images, labels\)\]"):
            bnrecon.reconstruct(model, images=(images, wrong))
    assert bnrecon.reconstruct(model, images=[(images, labels)]).verified
    assert bnrecon.reconstruct(model, images=(images, images)).verified


@pytest.mark.parametrize("fold", ["no", 0, None])
def test_fold_is_true_or_false(fold):
    with pytest.raises(UserError, match=r"^fold=.* true or false"):
        bnrecon.reconstruct(nn.Linear(4, 3).eval(), fold=fold)
