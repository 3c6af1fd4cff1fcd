"""Attention and transformers: projections become source layers, which no path bypasses."""

import itertools

import pytest
import torch
import torchvision
from networks import Composed
from torch import nn

import bnrecon
from bnrecon.reconstruction import plan_layers, reconstruct
from bnrecon.reconstruction.attention import Attention
from bnrecon.reconstruction.source_file import source_layers
from bnrecon.runtime.errors import UserError

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "out_proj"]


def attention(**options):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, **options).double().eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return module


def sequences(module, batched=True):
    """Query, key and value of lengths 5 and 6, in the module's order of dimensions."""
    generator = torch.Generator().manual_seed(1)
    sides = [(5, 8), (6, module.kdim), (6, module.vdim)]
    batch = (3,) if batched else ()
    inputs = [torch.randn(*batch, *side, generator=generator).double() for side in sides]
    return inputs if module.batch_first or not batched else [x.transpose(0, 1) for x in inputs]


def close(ours, theirs):
    if ours is None or theirs is None:
        return ours is theirs
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("batched", [True, False], ids=["batch", "single"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True},
        {"bias": False},
        {"kdim": 4, "vdim": 6, "batch_first": True},
        {"kdim": 4, "vdim": 6, "bias": False},
        {"add_bias_kv": True},
        {"add_zero_attn": True, "add_bias_kv": True, "batch_first": True},
        {"dropout": 0.5},
    ],
    ids=str,
)
def test_attention_matches_pytorch_with_all_options(options, batched):
    model = attention(**options)
    rebuilt = reconstruct(model, oversampling=2)
    assert [layer.name for layer in rebuilt.layers] == PROJECTIONS
    assert all(layer.relative_error < 1e-10 for layer in rebuilt.layers)
    inputs = sequences(model, batched)
    causal = torch.ones(5, 6).tril().logical_not()
    per_head = torch.randn((6 if batched else 2), 5, 6).double()
    padding = torch.zeros((3, 6) if batched else (6,), dtype=torch.bool)
    padding[..., -2:] = True
    for mask, padded, weights, average in itertools.product(
        (None, causal, per_head), (None, padding), (True, False), (True, False)
    ):
        if mask is per_head and padded is not None:  # PyTorch wants both of one type
            padded = torch.zeros(padded.shape).double().masked_fill(padded, -torch.inf)
        arguments = {
            "attn_mask": mask,
            "key_padding_mask": padded,
            "need_weights": weights,
            "average_attn_weights": average,
        }
        with torch.no_grad():
            ours, theirs = rebuilt.network(*inputs, **arguments), model(*inputs, **arguments)
        assert close(ours[0], theirs[0])
        assert close(ours[1], theirs[1])


def test_attention_is_saved_loaded_and_collapsed(tmp_path):
    model = nn.ModuleDict({"a": attention(), "b": nn.Linear(8, 3).double()}).eval()
    rebuilt = reconstruct(model)
    assert [layer.name for layer in rebuilt.layers] == [*(f"a.{name}" for name in PROJECTIONS), "b"]
    inputs = sequences(model["a"])
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    with torch.no_grad():
        wanted = rebuilt.network["a"](*inputs)[0]
        assert torch.equal(loaded["a"](*inputs)[0], wanted)
        collapsed = bnrecon.collapse(loaded)
        assert not source_layers(collapsed)
        assert close(collapsed["a"](*inputs)[0], model["a"](*inputs)[0])
    assert isinstance(model["a"], nn.MultiheadAttention)


def test_kept_attention_is_loaded_as_kept(tmp_path):
    """Files from before attention could be rebuilt look like this."""
    model = nn.ModuleDict({"a": attention(), "b": nn.Linear(8, 3).double()}).eval()
    hook = model["a"].register_forward_hook(lambda *_: None)
    with pytest.raises(UserError, match="a: its forward hooks would be lost with it"):
        reconstruct(model)
    rebuilt = reconstruct(model, unsupported="keep")
    assert [layer.name for layer in rebuilt.layers] == ["b"]
    path = rebuilt.save(tmp_path / "source.safetensors")
    hook.remove()
    loaded = bnrecon.load_source(path, model)
    assert type(loaded["a"]) is nn.MultiheadAttention
    assert torch.equal(loaded["a"].in_proj_weight, model["a"].in_proj_weight)


def test_attention_subclass_is_refused():
    class Doubled(nn.MultiheadAttention):
        def forward(self, query, *others, **options):
            return super().forward(2 * query, *others, **options)

    with pytest.raises(UserError, match="the model: Doubled computes something of its own"):
        reconstruct(Doubled(4, 2).eval())


def test_projections_beyond_memory_stay_linear_layers(tmp_path, monkeypatch):
    model = nn.ModuleDict({"a": attention(), "b": nn.Linear(3, 3).double()}).eval()
    monkeypatch.setattr("bnrecon.reconstruction.planning.available_memory", lambda _: 20_000)
    rebuilt = reconstruct(model, unsupported="keep")
    assert [layer.name for layer in rebuilt.layers] == ["b"]
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    inputs = sequences(model["a"])
    with torch.no_grad():
        assert close(loaded["a"](*inputs)[0], model["a"](*inputs)[0])


@pytest.mark.parametrize("with_images", [True, False], ids=["run", "trace"])
def test_packed_weight_read_elsewhere_is_detected(with_images):
    def read_packed_weight(self, x):
        x = x + nn.functional.linear(x, self.attention.in_proj_weight[:8])
        return self.head(self.attention(x, x, x)[0])

    parts = {"attention": attention(batch_first=True), "head": nn.Linear(8, 3).double()}
    model, x = Composed(read_packed_weight, **parts).eval(), torch.randn(4, 5, 8).double()
    images = x if with_images else None
    with pytest.raises(UserError, match=r"attention\.q_proj: its weight is read outside"):
        reconstruct(model, images=images)
    kept = reconstruct(model, unsupported="keep", images=images)
    assert [layer.name for layer in kept.layers] == ["attention.out_proj", "head"]
    with torch.no_grad():
        assert close(kept.network(x), model(x))


def transformer_layer(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True, **options)
    return layer.double().eval()


@torch.no_grad()
def output_changes(network, model, x):
    """How much the output, equal to the model's, moves with one scale of each source layer."""
    before, moved = network(x), {}
    assert close(before, model(x))
    for name, layer in source_layers(network).items():
        layer.first_norm.weight[0] += 1
        moved[name] = float((network(x) - before).abs().max())
        layer.first_norm.weight[0] -= 1
    return moved


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_encoder_fast_path_does_not_bypass_source_layers(norm_first, activation):
    model = transformer_layer(norm_first=norm_first, activation=activation)
    x = torch.randn(4, 5, 8).double()
    rebuilt = reconstruct(model, images=x)
    names = [*(f"self_attn.{name}" for name in PROJECTIONS), "linear1", "linear2"]
    assert [layer.name for layer in rebuilt.layers] == names
    assert rebuilt.difference.largest < 1e-9
    moved = output_changes(rebuilt.network, model, x)
    assert set(moved) == set(names)
    assert min(moved.values()) > 1e-9


@pytest.mark.parametrize("part", ["linear1", "self_attn"])
def test_fast_path_is_off_where_only_a_part_is_rebuilt(part):
    model = transformer_layer()
    kept = model.self_attn if part == "linear1" else model.linear1
    kept.register_forward_hook(lambda *_: None)
    x = torch.randn(4, 5, 8).double()
    network = reconstruct(model, unsupported="keep", images=x).network
    for module in network.modules():
        module._forward_hooks.clear()
    moved = output_changes(network, model, x)
    assert moved
    assert min(moved.values()) > 1e-9


def test_transformer_is_rebuilt_with_masks_and_loaded(tmp_path):
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 2, 2, 12, batch_first=True).double().eval()
    rebuilt = reconstruct(model)
    assert len(rebuilt.layers) == 2 * 6 + 2 * 10
    assert any("fast path" in note for note in rebuilt.notes)
    source, target = torch.randn(3, 6, 8).double(), torch.randn(3, 5, 8).double()
    masks = {"tgt_mask": nn.Transformer.generate_square_subsequent_mask(5).double()}
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    with torch.no_grad():
        wanted = model(source, target, **masks)
        assert close(rebuilt.network(source, target, **masks), wanted)
        assert torch.equal(
            loaded(source, target, **masks), rebuilt.network(source, target, **masks)
        )
        encoder, padding = rebuilt.network.encoder, torch.zeros(3, 6, dtype=torch.bool)
        padding[0, -2:] = True
        ours = encoder(source, src_key_padding_mask=padding)
        theirs = model.encoder(source, src_key_padding_mask=padding)
        seen = ~padding  # PyTorch's fast path writes zeros at padding
        assert close(ours[seen], theirs[seen])


def test_torchvision_vision_transformer_is_rebuilt():
    torch.manual_seed(0)
    model = torchvision.models.VisionTransformer(8, 4, 2, 2, 8, 12, num_classes=3).eval()
    nn.init.normal_(model.heads.head.weight)
    x = torch.randn(4, 3, 8, 8)
    rebuilt = reconstruct(model, images=x)
    assert not any("is left as it is" in note for note in rebuilt.notes)
    assert len(rebuilt.layers) == 2 * 6 + 2
    assert rebuilt.difference.largest < 1e-4 * rebuilt.difference.size


def test_plan_keeps_the_models_attention_and_weights():
    model = transformer_layer()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = plan_layers(model)
    assert isinstance(plan.model.self_attn, Attention)
    shared = plan.model.self_attn.q_proj.weight
    assert shared.data_ptr() == model.self_attn.in_proj_weight.data_ptr()
    assert type(model.self_attn) is nn.MultiheadAttention
    assert model.activation_relu_or_gelu == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
