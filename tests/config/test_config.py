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


OWN = {
    "experiment/plain": "train: {epochs: 7}",
    "scale/plain": "train: {epochs: 7}",
    "scale/nameless": "# @package _global_\ntrain: {epochs: 7}",
    "target/mine": "defaults: [vgg_schema, _self_]\nname: mine\nfamily: vgg\nwidth: 5",
}


@pytest.fixture
def own(tmp_path):
    """A folder of a user's yaml files, as a flag."""
    for name, content in OWN.items():
        file = tmp_path / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)
    return f"--config-dir={tmp_path}"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("experiment=plain", "experiment/plain.yaml: give options, below a first line # @package"),
        ("scale=plain", "scale/plain.yaml: give options, below a first line # @package"),
        ("scale=nameless", "scale has no value"),
        ("~scale", "scale has no value"),
        ("~train.lr", "~train.lr: an option cannot be removed"),
        ("+features=sign", "features is chosen already: write features=sign without +"),
        ("+train.lr=1", "+train.lr: is an option already; write it without +"),
        ("seeds=range(0,3)", "write a list as [0,1,2]"),
        ("seeds=[range(0,3)]", "write a list as [0,1,2]"),
        ("train.lr=${oc.env:NO_SUCH}", "train.lr: the environment variable NO_SUCH is not set"),
        ("train.lr=${nothing}", "train.lr: nothing is not an option"),
        ("hydra.foo=1", "hydra.foo is not an option\n"),
        ("hydra.searchpath=[file:///no/such]", "/no/such is not available"),
    ],
)
def test_mistake_with_hydras_words_is_one_line(command, own, words, line):
    code, out, err = command("run", own, words)
    assert (code, out) == (2, "")
    assert line in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("words", [(), ("--cfg=job",), ("--help",)])
def test_missing_folder_of_own_yaml_is_named(command, words):
    code, out, err = command("run", "--config-dir=no/such", *words)
    assert (code, out) == (2, "")
    assert err == "bnrecon: --config-dir=no/such: no such folder\n"


def test_own_yaml_of_a_shipped_name_is_refused(command, own, tmp_path):
    (tmp_path / "target" / "mlp.yaml").write_text(OWN["target/mine"])
    for words in ((), ("--cfg", "job")):
        code, _, err = command("run", own, "target=mlp", *words)
        assert code == 2
        assert "bnrecon has a target/mlp.yaml too and reads its own; rename yours" in err


def test_help_takes_the_words_that_the_command_takes(command, own):
    words = (own, "-m", "target=mine", "train.lr=0.5,0.6", "jobs=2", "--help")
    code, out, err = command("run", *words)
    assert (code, err) == (0, "")
    assert "target.width=5 " in out
    assert "train.lr=0.5 " in out


def test_choice_of_imports_does_not_replace_a_schema():
    with pytest.raises(UserError, match="has no value"):
        composition.compose(["imports=[json]", "target=vgg_schema"])
    words = ("train.lr=0.25",)
    assert composition.from_hydra(composition._compose(words)).train.lr == 0.25
