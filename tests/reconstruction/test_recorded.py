"""Rebuilt networks are exported as graphs that work for any batch size."""

import pytest
import torch
from networks import randomize
from random_layer import ELSEWHERE
from torch import fx, nn

import bnrecon
from bnrecon.features import DISTRIBUTIONS
from bnrecon.reconstruction import source_layer

pytestmark = pytest.mark.filterwarnings("ignore:.*jit", "ignore::torch.jit.TracerWarning")


def networks():
    """A model and the shape of an input, for every dimension of layers."""
    images = (nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    images += (nn.Conv2d(4, 6, 3, stride=2, groups=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    yield "images", nn.Sequential(*images, nn.Flatten(), nn.Linear(6, 3)), (3, 9, 9)
    yield "sequences", nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), (7, 5)
    yield "one side", nn.Sequential(nn.Conv1d(2, 3, 3, padding="same")), (2, 11)
    yield "volumes", nn.Sequential(nn.Conv3d(2, 3, 2)), (2, 4, 5, 4)


NETWORKS = {name: (model, size) for name, model, size in networks()}
SPEC = bnrecon.FeatureSpec
FEATURES = {
    "he_normal": SPEC("he_normal"),
    "implicit": SPEC("id_cond"),
    "inner skip": SPEC("he_normal", skip="inner"),
    "outer skip": SPEC("he_normal", skip="outer"),
    "activation": SPEC("he_normal", activation="leaky_relu"),
}


def export(network, x):
    return torch.export.export(network, (x,), dynamic_shapes=({0: torch.export.Dim("b")},)).module()


def export_onnx(network, x):
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    sizes = ({0: torch.export.Dim("b")},)
    program = torch.onnx.export(network, (x,), dynamo=True, dynamic_shapes=sizes, verbose=False)
    session = runtime.InferenceSession(program.model_proto.SerializeToString())
    name = session.get_inputs()[0].name
    return lambda y: torch.from_numpy(session.run(None, {name: y.numpy()})[0])


RECORD = {
    "export": export,
    "onnx": export_onnx,
    "trace": torch.jit.trace,
    "fx": lambda network, _: fx.symbolic_trace(network),
}


@pytest.mark.parametrize(
    ("record", "features"),
    [
        (record, features)
        for record in RECORD
        for features in FEATURES
        if not (
            record == "fx" and "skip" in features
        )  # a kernel's centre depends on the input size
    ],
)
@pytest.mark.parametrize("name", NETWORKS)
def test_graph_computes_the_same_for_any_batch(name, features, record, monkeypatch):
    monkeypatch.setattr(source_layer, "IMPLICIT_FROM", 0)
    model, size = NETWORKS[name]
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(count, *size, generator=generator) for count in (4, 7))
    network = bnrecon.reconstruct(randomize(model, size), FEATURES[features], images=x).network
    recorded = RECORD[record](network, x)
    assert torch.allclose(recorded(y), network(y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "storage"), ELSEWHERE)
def test_features_outside_memory_are_traced_and_otherwise_refused(name, storage):
    model, size = NETWORKS["images"]
    width = "maximum" if DISTRIBUTIONS[name].at_most_n else None
    spec = SPEC(name, storage=storage, width=width)
    network = bnrecon.reconstruct(model.eval(), spec).network
    x, y = torch.randn(4, *size), torch.randn(7, *size)
    assert torch.allclose(torch.jit.trace(network, x)(y), network(y), rtol=1e-4, atol=1e-5)
    for record in (export, RECORD["fx"]):
        with pytest.raises(Exception, match=r"not in memory.*bnrecon\.collapse"):
            record(network, x)
    scripted = torch.jit.script(bnrecon.collapse(network))
    assert torch.allclose(scripted(y), network(y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "norm", "size"),
    [(nn.Linear(5, 4), nn.BatchNorm1d(4), (5,)), (nn.Conv1d(3, 4, 2), nn.BatchNorm1d(4), (3, 7))],
)
def test_collapsed_layer_with_a_batchnorm_is_scripted_and_traced(layer, norm, size):
    model, x = nn.Sequential(layer, norm, nn.ReLU()), torch.randn(6, *size)
    collapsed = bnrecon.collapse(bnrecon.reconstruct(randomize(model, size)).network)
    tracer = fx.Tracer()
    tracer.is_leaf_module = lambda *_: False
    traced = fx.GraphModule(collapsed, tracer.trace(collapsed))
    for recorded in (torch.jit.script(collapsed), traced):
        torch.testing.assert_close(recorded(x), model(x), rtol=1e-4, atol=1e-5)
    wrong = x[None] if len(size) == 1 else x[0]
    for called in (torch.jit.script(collapsed), collapsed):
        with pytest.raises(Exception, match="normalizes its second dimension"):
            called(wrong)


@pytest.mark.parametrize("features", ["he_normal", "sign"])
def test_features_drawn_in_each_forward_break_the_graph(features):
    model, size = NETWORKS["images"]
    network = bnrecon.reconstruct(model.eval(), SPEC(features, storage="regenerate")).network
    x = torch.randn(4, *size)
    compiled = torch.compile(network, backend="eager")
    assert torch.allclose(compiled(x), network(x), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"(fullgraph=True|storage=memory).*bnrecon\.collapse"):
        torch.compile(network, backend="eager", fullgraph=True)(x)
