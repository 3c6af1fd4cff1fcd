"""The script behind docs/models.md: small torchvision models, resuming, and the page."""

import model_table
import pytest
import torch
import torchvision
from torch import nn


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("efficientnet_v2_s", 10**6),
        ("mobilenet_v3_small", 10**5),
        ("regnet_y_400mf", 10**6),
        ("resnext50_32x4d", 10**7),
        ("shufflenet_v2_x2_0", 10**5),
        ("swin_v2_t", 10**6),
        ("vit_b_16", 10**5),
    ],
)
def test_models_are_shrunk_by_arguments_without_changing_torchvision(name, limit):
    before = torchvision.models.get_model_builder(name)
    kinds = {kind: getattr(torchvision.models, kind) for kind in model_table.SMALLER}
    model, side = model_table.build(name)
    assert sum(parameter.numel() for parameter in model.parameters()) < limit
    model.eval()(torch.randn(1, 3, side, side))
    assert torchvision.models.get_model_builder(name) is before
    assert all(getattr(torchvision.models, kind) is value for kind, value in kinds.items())


@pytest.fixture
def small_model():
    """A library of a small network, and the names of its builds."""
    built = []

    def build(name):
        built.append(name)
        layers = [nn.Conv2d(3, 4, 3, groups=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(4 * 6 * 6, 3)), 8

    library = model_table.TORCHVISION._replace(build=build, models=["a", "b"])
    return library, built


def test_model_with_too_large_layers_has_none_rebuilt(small_model, tmp_path):
    library, _ = small_model
    file = tmp_path / "rows.jsonl"
    model_table.compute(library, file, operations=1)
    rows = model_table.read_rows(file)
    assert rows["a"]["he_normal"]["rebuilt"] == 0
    assert rows["a"]["he_normal"]["kept"] == {model_table.TOO_LARGE: 2}
    assert "| a, b | 2 | 2 |" in (page := model_table.page(library, rows))
    assert page.split("| a, b |")[1].splitlines()[0].endswith("| 0 |  |")


def test_finished_model_is_not_recomputed(small_model, tmp_path):
    library, built = small_model
    file = tmp_path / "folder" / "rows.jsonl"
    model_table.compute(library, file, 1e9)
    rows = model_table.read_rows(file)
    assert rows["a"]["id_cond"]["rebuilt"] == 2
    assert rows["a"]["he_normal"]["difference"] < 1e-8
    lines = file.read_text().splitlines()
    file.write_text(f"{lines[0]}\n")
    model_table.compute(library, file, 1e9)
    assert built == ["a", "b", "a", "b", "b", "b"]  # for id_cond and he_normal
    assert set(model_table.read_rows(file)) == {"a", "b"}


@pytest.mark.parametrize("library", [model_table.TORCHVISION, model_table.TEN_OF_TIMM])
def test_shipped_page_is_generated_from_the_shipped_rows(library):
    rows = model_table.read_rows(model_table.ROOT / f"outputs/models/{library.name}.jsonl")
    assert model_table.page(library, rows) == library.page.read_text(encoding="utf-8")
    for entry in rows.values():
        entries = [entry[features.name] for features in model_table.FEATURES]
        assert all(each["converged"] == each["rebuilt"] <= each["layers"] for each in entries)
        assert entry["id_cond"]["difference"] < 1e-9
    assert set(rows) == set(library.models)
