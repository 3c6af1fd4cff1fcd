"""Options: composition of choices, help, and the specs that are their schema."""

import functools
from pathlib import Path

import pytest

from bnrecon.config import composition, help, schema
from bnrecon.data.spec import DataSpec
from bnrecon.features.spec import FeatureSpec
from bnrecon.runtime.errors import UserError
from bnrecon.solvers.spec import SolverSpec
from bnrecon.targets.spec import (
    CustomTarget,
    NormalizationVggTarget,
    Resnet9Target,
    TrainSpec,
    VggTarget,
)


def test_target_chooses_its_data_unless_overridden(command):
    _, out, _ = command("run", "target=vgg18", "--cfg", "job")
    assert "name: cifar10" in out
    assert "epochs: 30" in out
    _, out, _ = command("run", "target=vgg18", "data=digits", "scale=paper", "--cfg", "job")
    assert "name: digits" in out
    assert "epochs: 205" in out


def test_help_names_every_option_with_meaning_and_allowed_values():
    listed = help.options()
    assert len({option.name for option in listed}) == len(listed)
    for group in schema.SPECS:
        for spec in schema.spec_classes(group):
            fields = {f"{group}.{name}" for name in schema.field_names(spec)}
            assert fields <= {option.name for option in listed}
    assert [option.name for option in listed if not option.help] == []
    by_name = {option.name: option for option in listed}
    assert by_name["train.precision"].allowed == ("auto", "float32", "bfloat16")
    assert by_name["train.lr"].limits == "above 0"
    assert by_name["data.flip"].allowed == ("true", "false")


@pytest.mark.parametrize("first", ["experiment", "scale", "target", "data"])
def test_separately_composed_choices_match_hydra(first):
    for number, choice in enumerate(help.choices(first)):
        names = [list(help.choices(group)) for group in ("features", "solver")]
        features, solver = (group[number % len(group)] for group in names)
        apart = [f"features={features}", f"solver={solver}", "seeds=[3]", "solver.tolerance=1e-6"]
        for words in ([f"{first}={choice}"], [f"{first}={choice}", *apart]):
            expected = composition.from_hydra(composition._compose(tuple(words)))
            assert composition.compose(words) == expected


def test_path_is_no_choice(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [schema, _self_]\nname: lu\n")
    with pytest.raises(UserError, match=r"^solver=.*mine: Allowed: auto, closed_form, "):
        composition.compose([f"solver={tmp_path / 'mine'}"])


def test_missing_home_folder_is_not_written_to(no_home):
    assert composition.compose([]).outputs == "outputs"
    with pytest.raises(UserError, match=r"^~/runs: you have no home folder"):
        composition.compose(["outputs=~/runs"])


TRAIN, FEATURES, SOLVER = TrainSpec, FeatureSpec, SolverSpec
DATA = functools.partial(DataSpec, "folder")
CUSTOM = functools.partial(CustomTarget, "mine", "mine")
TARGET = functools.partial(Resnet9Target, "resnet9", "resnet9")
PAIRS = functools.partial(NormalizationVggTarget, "pairs", "vgg_normalization", groups=[1])
IMAGENET = functools.partial(DataSpec, "imagenet")
FOLDED = {"initialization": "folded_statistics"}


@pytest.mark.parametrize(
    ("spec", "fields", "line"),
    [
        (TRAIN, {"lr": 0}, "lr=0: must be above 0"),
        (TRAIN, {"epochs": 2, "test_every": 3}, "test_every=3: must be at most epochs=2"),
        (FEATURES, {"oversampling": 0}, "oversampling=0: must be above 0"),
        (FEATURES, {"excess": 3, "width": 9}, "excess=3, width=9: give one of oversampling"),
        (FEATURES, {"epsilon": float("inf")}, "epsilon=inf: must be above 0"),
        (FEATURES, {"keep": 0}, "keep=0: must be above 0 and at most 1"),
        (FEATURES, {"keep": 0.5}, r"keep=0.5: give pruning=magnitude\|refit\|iterative\|l1 too"),
        (FEATURES, {"pruning": "l1"}, "pruning=l1: give keep=SHARE too"),
        (
            FEATURES,
            {"keep": 0.5, "pruning": "l1", "width": "minimum"},
            "the minimum width has no feature",
        ),
        (SOLVER, {"tolerance": 0}, "tolerance=0: must be above 0"),
        (DATA, {"side": 10**6}, "side=1000000: must be at least 1 and at most 4,096"),
        (DATA, {"side": 2.5}, "side=2.5: must be a whole number"),
        (DATA, {"workers": 10**6}, r"workers=1000000: at most \d+ on \d+ cores"),
        (DATA, {"flip": 1}, "flip=1: must be true or false"),
        (DATA, {"validation": 0}, "validation=0: must be at least 1"),
        (DATA, {"root": "a\0b"}, "root=.*: give a path$"),
        (DATA, {"root": ""}, "root=.*: give a path$"),
        (TARGET, {"virtual_batch": 1.5}, "virtual_batch=1.5: must be at least 2"),
        (TARGET, {"initialization": "zero_bias", "virtual_batch": 8}, "give at most one of them"),
        (TARGET, {"initialization": "zero_bias", "affine": False}, "leave affine out"),
        (CUSTOM, {"options": {"depth": float("inf")}}, r"options\.depth=inf: must be finite"),
        (TARGET, FOLDED | {"condition": 10}, "is not for weights with fixed factors"),
        (TARGET, FOLDED | {"density": 0.5}, "is not for weights with fixed factors"),
        (PAIRS, {"affine": False}, "affine: a frozen pair keeps"),
        (PAIRS, {"virtual_batch": 8}, "virtual_batch: a frozen pair"),
        (PAIRS, {"padding": "reflect", "features": "none"}, "convolutions have zero padding"),
        (PAIRS, {"density": 0.5, "inner": "mask"}, "give at most one of these masks"),
        (IMAGENET, {"crop_padding": 0}, "always resized crops, mirrored at random"),
        (IMAGENET, {"crop_padding": 4, "flip": False}, "always resized crops"),
    ],
)
def test_impossible_field_of_a_spec_is_one_line(spec, fields, line):
    with pytest.raises(UserError, match=line) as caught:
        spec(**fields)
    assert str(caught.value).startswith(tuple(fields))
    assert "\n" not in str(caught.value)


def test_specs_are_the_schema_and_name_their_fields():
    with pytest.raises(UserError, match=r"^train\.lr=0\.0: must be above 0"):
        composition.compose(["train.lr=0"])
    config = composition.compose(["targets=trained"])
    request = config.target_request
    assert request.train is config.train
    assert request.target == VggTarget("vgg_small", "vgg", width=12, groups=[2, 2])
    assert request.store == Path("trained")
    assert composition.compose([]).target_request.store == Path("outputs/targets")


def test_pairs_have_one_weight_decay():
    words = ["target=vgg18_normalization", "train.norm_decay=0"]
    with pytest.raises(UserError, match=r"train\.norm_decay=0: .* give train\.weight_decay"):
        composition.compose(words).target_request  # noqa: B018
    assert (
        composition.compose([*words, "target.features=none"]).target_request.train.norm_decay == 0
    )
