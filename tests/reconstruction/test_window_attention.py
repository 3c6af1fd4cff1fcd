"""Swin: projections of window attention become source layers."""

import dataclasses
import pickle

import pytest
import torch
from networks import Composed, difference
from torch import nn
from torch.nn.utils import parametrize
from torchvision.models import SwinTransformer
from torchvision.models.swin_transformer import (
    PatchMergingV2,
    ShiftedWindowAttention,
    ShiftedWindowAttentionV2,
    SwinTransformerBlockV2,
)

import bnrecon
from bnrecon.reconstruction import plan_layers, reconstruct
from bnrecon.reconstruction.source_file import source_layers
from bnrecon.reconstruction.window_attention import (
    WindowAttention,
    WindowAttentionV2,
)
from bnrecon.runtime.errors import RunError, UserError

VERSIONS = {ShiftedWindowAttention: WindowAttention, ShiftedWindowAttentionV2: WindowAttentionV2}
SECOND = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}
IMAGES = torch.randn(2, 3, 16, 12, generator=torch.Generator().manual_seed(1)).double()


def randomized(module):
    """Draw every parameter anew, including Swin V2's bias of the keys."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0, 0.3)
    return module.double().eval()


def swin(**options):
    """Two attentions with windows of 3 on 8 x 6 tokens, padded, and one on 4 x 3."""
    return randomized(SwinTransformer([2, 2], 8, [2, 1], [1, 2], [3, 3], num_classes=3, **options))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("kind", VERSIONS)
def test_window_attention_is_rebuilt(kind, shift, bias):
    attention = randomized(kind(8, [3, 3], [shift, shift], 2, qkv_bias=bias, proj_bias=bias))
    x = torch.randn(2, 5, 7, 8, generator=torch.Generator().manual_seed(2)).double()
    rebuilt = reconstruct(attention, images=x, oversampling=2)
    assert {"qkv", "proj"} <= {layer.name for layer in rebuilt.layers}
    assert type(rebuilt.network) is VERSIONS[kind]
    assert difference(rebuilt.network, attention, x) < 1e-8


@pytest.mark.parametrize("options", [{}, SECOND], ids=["V1", "V2"])
@pytest.mark.parametrize("with_images", [True, False], ids=["run", "trace"])
def test_swin_is_rebuilt(options, with_images):
    model = swin(**options)
    rebuilt = reconstruct(model, images=IMAGES if with_images else None, oversampling=2)
    assert not any("is left as it is" in note for note in rebuilt.notes)
    linear = [part for part in model.modules() if isinstance(part, nn.Linear | nn.Conv2d)]
    assert len(rebuilt.layers) == len(linear)
    assert difference(rebuilt.network, model, IMAGES) < 1e-8


@pytest.mark.parametrize("options", [{}, SECOND], ids=["V1", "V2"])
def test_swin_is_saved_loaded_collapsed_and_pickled(options, tmp_path):
    model = swin(**options)
    rebuilt = reconstruct(model, oversampling=2)
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "source.safetensors"), model)
    collapsed = bnrecon.collapse(loaded)
    assert not source_layers(collapsed)
    with torch.no_grad():
        wanted = rebuilt.network(IMAGES)
        assert torch.equal(loaded(IMAGES), wanted)
        assert torch.equal(pickle.loads(pickle.dumps(rebuilt.network))(IMAGES), wanted)
    assert difference(collapsed, model, IMAGES) < 1e-8


def test_planning_leaves_the_model_unchanged():
    model = swin(**SECOND)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = plan_layers(model)
    planned, original = plan.model.features[1][0].attn, model.features[1][0].attn
    assert (type(planned), type(original)) == (WindowAttentionV2, ShiftedWindowAttentionV2)
    assert planned.qkv.weight is original.qkv.weight
    assert planned.cpb_mlp is not original.cpb_mlp
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_keys_of_padding_zeros_stay_zero():
    """Normalizing would turn rounding errors into vectors of length 1."""
    attention = randomized(WindowAttentionV2(8, [3, 3], [0, 0], 2))
    x = torch.randn(1, 4, 4, 8, generator=torch.Generator().manual_seed(2)).double()
    noise = torch.randn(4, 10, 24, generator=torch.Generator().manual_seed(3)).double()
    with torch.no_grad():
        wanted = attention(x)
    attention.qkv.register_forward_hook(lambda *args: args[2] + 1e-9 * noise)
    assert difference(attention, lambda _: wanted, x) < 1e-6


def test_projections_kept_linear_in_a_file_are_loaded_as_kept(tmp_path):
    """Files from before they could be rebuilt look like this."""
    parts = {"attention": ShiftedWindowAttention(8, [3, 3], [1, 1], 2), "last": nn.Linear(8, 3)}
    model = randomized(Composed(lambda self, x: self.last(self.attention(x)), **parts))
    x = torch.randn(2, 6, 6, 8).double()
    hook = model.attention.qkv.register_forward_hook(lambda *_: None)
    with pytest.raises(UserError, match=r"attention\.qkv: .*; attention\.proj: its weight is read"):
        reconstruct(model)
    rebuilt = reconstruct(model, unsupported="keep")
    assert [layer.name for layer in rebuilt.layers] == ["last"]
    path = rebuilt.save(tmp_path / "source.safetensors")
    hook.remove()
    loaded = bnrecon.load_source(path, model)
    assert type(loaded.attention) is ShiftedWindowAttention
    assert difference(loaded, model, x) < 1e-8
    whole = reconstruct(model).save(tmp_path / "whole.safetensors")
    model.attention.qkv.register_forward_hook(lambda *_: None)
    with pytest.raises(RunError, match=r"attention around attention\.qkv does not call it"):
        bnrecon.load_source(whole, model)


def test_one_projection_may_stay_linear(tmp_path):
    attention = randomized(ShiftedWindowAttentionV2(8, [3, 3], [1, 1], 2))
    plan = plan_layers(attention)
    some = [layer for layer in plan.layers if layer.name == "proj"]
    solved = {layer.name: bnrecon.solve_layer(layer) for layer in some}
    rebuilt = bnrecon.assemble(dataclasses.replace(plan, layers=some), solved)
    loaded = bnrecon.load_source(rebuilt.save(tmp_path / "one.safetensors"), attention)
    x = torch.randn(2, 5, 7, 8).double()
    assert difference(rebuilt.network, attention, x) < 1e-8
    with torch.no_grad():
        assert torch.equal(loaded(x), rebuilt.network(x))


def test_parts_shared_by_an_attention_stay_shared():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (
                ShiftedWindowAttentionV2(8, [3, 3], [0, 0], 2) for _ in range(2)
            )
            self.second.cpb_mlp, self.kept = self.first.cpb_mlp, []
            self.first.register_forward_hook(self.keep)

        def keep(self, _module, _inputs, output):
            self.kept.append(output)

        def forward(self, x):
            self.kept.clear()
            return self.second(self.first(x)) + self.kept[-1] + self.first.qkv(x)[..., 8:16]

    model = randomized(Model())
    x = torch.randn(2, 5, 7, 8).double()
    for images in (None, x):
        rebuilt = reconstruct(model, images=images)
        assert sum("cpb_mlp" in layer.name for layer in rebuilt.layers) == 2
        assert difference(rebuilt.network, model, x) < 1e-8


def test_computed_bias_is_used():
    attention = ShiftedWindowAttentionV2(8, [3, 3], [1, 1], 2)
    parametrize.register_parametrization(attention.qkv, "bias", nn.Tanh())
    attention, x = randomized(attention), torch.randn(2, 5, 7, 8).double()
    rebuilt = reconstruct(attention, images=x)
    assert difference(rebuilt.network, attention, x) < 1e-8


def test_collapsed_network_is_torchvisions_and_traceable():
    model = swin()
    collapsed = bnrecon.collapse(reconstruct(model).network)
    assert type(collapsed.features[1][0].attn) is ShiftedWindowAttention
    assert difference(torch.fx.symbolic_trace(collapsed), model, IMAGES) < 1e-8


def test_user_modules_in_an_attention_are_traced():
    def read(self, x):
        return nn.functional.linear(x, self.layer.weight, self.layer.bias)

    attention = ShiftedWindowAttentionV2(8, [3, 3], [0, 0], 2)
    attention.cpb_mlp[0] = Composed(read, layer=attention.cpb_mlp[0])
    with pytest.raises(UserError, match=r"cpb_mlp\.0\.layer: its weight is read outside"):
        reconstruct(attention.eval())


def test_attention_subclass_is_not_taken_for_torchvisions():
    class Doubled(ShiftedWindowAttention):
        def forward(self, x):
            return super().forward(2 * x)

    with pytest.raises(UserError, match="qkv: its weight is read outside of the layer, by shifted"):
        reconstruct(Doubled(8, [3, 3], [0, 0], 2).eval())
