"""The script that makes docs/models.md: small models of torchvision, resumed, and written down."""

import dataclasses

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
def test_models_are_made_small_by_their_arguments_and_torchvision_stays_as_it_was(name, limit):
    before = torchvision.models.get_model_builder(name)
    kinds = {kind: getattr(torchvision.models, kind) for kind in model_table.SMALLER}
    model, small = model_table.build(name)
    assert sum(parameter.numel() for parameter in model.parameters()) < limit
    model.eval()(torch.randn(1, 3, small.side, small.side))
    assert torchvision.models.get_model_builder(name) is before
    assert all(getattr(torchvision.models, kind) is value for kind, value in kinds.items())


@pytest.fixture
def small_model():
    """A library of a small network, and how often it was built."""
    built = []

    def build(name):
        built.append(name)
        layers = [nn.Conv2d(3, 4, 3, groups=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(4 * 6 * 6, 3)), model_table.Small("", side=8)

    library = dataclasses.replace(model_table.TORCHVISION, build=build, models=["a", "b"])
    return library, built


def test_a_model_whose_smallest_layer_is_too_much_has_none_rebuilt(small_model, tmp_path):
    library, _ = small_model
    file = tmp_path / "rows.jsonl"
    model_table.compute(library, ["a"], file, operations=1)
    rows = model_table.read_rows(file)
    assert rows["a"]["he_normal"]["rebuilt"] == 0
    assert rows["a"]["he_normal"]["kept"] == {model_table.TOO_LARGE: 2}
    assert "| a | 2 | 2 |" in (page := model_table.page(library, rows))
    assert page.split("| a |")[1].splitlines()[0].endswith("| 0 |  |  |")


def test_a_finished_model_is_not_computed_again_and_a_cut_line_is(small_model, tmp_path):
    library, built = small_model
    file = tmp_path / "folder" / "rows.jsonl"
    model_table.compute(library, library.models, file, 1e9)
    rows = model_table.read_rows(file)
    assert rows["a"]["id_cond"]["rebuilt"] == 2
    assert rows["a"]["he_normal"]["difference"] < 1e-8
    lines = file.read_text().splitlines()
    file.write_text(f"{lines[0]}\n{lines[1][:40]}")
    model_table.compute(library, library.models, file, 1e9)
    assert built == ["a", "b", "a", "b", "b", "b"]  # for id_cond and he_normal
    assert set(model_table.read_rows(file)) == {"a", "b"}


def test_layers_beyond_the_number_of_operations_are_kept_and_said(small_model, tmp_path):
    library, _ = small_model
    model_table.compute(library, ["a"], tmp_path / "rows.jsonl", 4 * 130 * 108 * 162 + 1)
    found = model_table.read_rows(tmp_path / "rows.jsonl")["a"]["he_normal"]
    assert (found["rebuilt"], found["layers"]) == (1, 2)
    assert found["kept"] == {"too large for this table": 1}


def test_the_page_has_a_line_for_each_model_and_each_reason(tmp_path):
    found = {
        "layers": 5, "rebuilt": 4, "converged": 4, "kept": {"read by linear": 1},
        "layer_error": 0.0, "difference": 2e-9, "seconds": 3.2,
    }  # fmt: skip
    rows = {
        "one": {"model": "one", "class": "VGG", "id_cond": found, "he_normal": found},
        "two": {"model": "two", "class": "VGG", "id_cond": found, "he_normal": {"error": "a|b"}},
        "six": {"model": "six", "class": "VGG", "id_cond": found},
    }
    for entry in rows.values():
        entry |= {"torch": "1", "version": "2", "threads": 1}
    page = model_table.page(model_table.TORCHVISION, rows)
    assert "| one | 5 | 4 | 2e-09 | 3 | 4 | 2e-09 | 3 |" in page
    assert "| two | 5 | 4 | 2e-09 | 3 | refused: a/b |  |  |" in page
    assert "| six | 5 | 4 | 2e-09 | 3 | not computed |  |  |" in page
    assert "| read by linear | one (1), six (1), two (1) |" in page
    assert "these are one network each" not in page  # he_normal's differences are not there
    assert "did not converge" not in page


def test_models_that_are_one_network_and_layers_that_did_not_converge_are_told():
    found = {
        "layers": 5, "rebuilt": 5, "converged": 4, "kept": {},
        "layer_error": 0.0, "difference": 2e-9, "seconds": 3.2,
    }  # fmt: skip
    more = {"class": "VGG", "torch": "1", "version": "2", "threads": 1}
    other = found | {"difference": 3e-9}
    rows = {
        "one": more | {"id_cond": found, "he_normal": found},
        "two": more | {"id_cond": found, "he_normal": found, "version": "3"},
        "six": more | {"id_cond": found, "he_normal": other},
    }
    page = model_table.page(model_table.TORCHVISION, rows)
    assert "\nMade small, these are one network each: one, two.\n" in page
    assert "6 of 30 did not converge." in page
    assert "torch 1, torchvision 2; torch 1, torchvision 3" in page


def test_mistakes_in_the_call_are_said_in_one_line(tmp_path, monkeypatch, capsys):
    for arguments, said in (
        (["--only", "resnet19"], "not among the models of torchvision: resnet19"),
        (["--timm", "--only", "resnet18"], "not among the models of timm: resnet18"),
        (["--write", "--rows", str(tmp_path / "none")], "no model in it; run without --write"),
    ):
        monkeypatch.setattr("sys.argv", ["model_table.py", *arguments])
        assert model_table.main() == 2
        assert said in capsys.readouterr().err


def test_a_page_of_timm_names_its_library_and_what_it_was_made_by():
    found = {
        "layers": 1, "rebuilt": 1, "converged": 1, "kept": {},
        "layer_error": 0.0, "difference": 0.0, "seconds": 1.0,
    }  # fmt: skip
    entry = {"class": "ResNet", "torch": "1", "version": "9", "threads": 1, "id_cond": found}
    page = model_table.page(model_table.TEN_OF_TIMM, {"ghost": entry})
    assert page.startswith("# Models of timm\n")
    assert "timm 9" in page
    assert "model_table.py --timm`" in page
    assert "made small" not in page


@pytest.mark.parametrize("library", [model_table.TORCHVISION, model_table.TEN_OF_TIMM])
def test_the_page_that_ships_is_made_of_the_rows_that_ship(library):
    rows = model_table.read_rows(model_table.ROOT / f"outputs/models/{library.name}.jsonl")
    assert model_table.page(library, rows) == library.page.read_text(encoding="utf-8")
    for entry in rows.values():
        found = [entry[features.name] for features in model_table.FEATURES]
        assert all(each["converged"] == each["rebuilt"] <= each["layers"] for each in found)
        assert entry["id_cond"]["difference"] < 1e-9
    assert set(rows) == set(library.models)
