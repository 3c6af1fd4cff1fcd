"""Options: every mistake is one line with the nearest name and exit code 2; what help shows."""

from pathlib import Path

import pytest

from bnrecon.config import composition, help, schema
from bnrecon.runtime.errors import UserError
from bnrecon.targets.spec import TrainSpec, VggTarget

MISTAKES = [
    ("width=4", "did you mean features.width or target.width?"),
    ("seeds=0,1,2", "write a list as seeds=[0,1,2]; several values are a sweep, with -m"),
    ("features.oversampling=1,5", ", a number as 1.5; several values are a sweep, with -m"),
    ("target.widht=3", "did you mean 'target.width'"),
    ("+target.extra=3", "target.extra is not an option"),
    ("tarzet.width=3", "did you mean 'target'"),
    ("target=vg18", "did you mean 'vgg18'"),
    ("target.width=wide", "target.width=wide: must be a whole number"),
    ("solver.tolerance=small", "must be a number"),
    ("target.width=-2", "target.width=-2: must be above 0"),
    ("train.momentum=1", "must be at least 0 and below 1"),
    ("seeds=3", "must be a list"),
    ("seeds=[1,1]", "give one or more different seeds"),
    ("seeds=[0", "could not read"),
    ("target.groups=[]", "give the number of convolutions"),
    ("device=gpu", "did you mean 'cpu'"),
    ("features.width=3", "below the minimum width n - c2 + 1 = 97"),
    ("features.width=200 features.excess=2", "features.width=200: give"),
    ("features=id_cond features.excess=5", "id_cond has 108"),
    ("solver=lu features.oversampling=1.5", "needs a square system"),
    ("solver=closed_form", "whose M is orthogonal"),
    ("data=folder", "data=folder needs data.root"),
    ("target=vgg_schema", "target.name has no value"),
    ("vgg18", "write name=value without spaces"),
    ("--target=vgg18", "without dashes, as in target=vgg18"),
    ("data=cifar10 data.root=~/no/such/folder", "no such folder"),
    ("data=digits data.root=mine", "data.root=mine: digits has no files; "),
    ("train.nesterov=true train.momentum=0", "train.nesterov=true: needs a momentum above 0"),
    ("features.name=mine", "sparse_id_cond, and what imports=[MODULE] registers"),
]


@pytest.mark.parametrize(("words", "line"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_a_mistake_is_one_line_and_exit_code_2(command, tmp_path, words, line):
    code, _, err = command("run", *words.split(), f"outputs={tmp_path}")
    assert code == 2
    assert line in err
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1


def test_the_target_brings_its_data_and_the_command_line_overrides_it(command):
    _, out, _ = command("run", "target=vgg18", "--cfg", "job")
    assert "name: cifar10" in out
    assert "epochs: 30" in out
    _, out, _ = command("run", "target=vgg18", "data=digits", "scale=paper", "--cfg", "job")
    assert "name: digits" in out
    assert "epochs: 205" in out


def test_help_names_every_option_with_its_meaning_and_what_it_allows():
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
def test_choices_composed_apart_are_what_hydra_composes(first):
    for number, choice in enumerate(help.choices(first)):
        names = [list(help.choices(group)) for group in ("features", "solver")]
        features, solver = (group[number % len(group)] for group in names)
        apart = [f"features={features}", f"solver={solver}", "seeds=[3]", "solver.tolerance=1e-6"]
        for words in ([f"{first}={choice}"], [f"{first}={choice}", *apart]):
            expected = composition.from_hydra(composition._compose(tuple(words)))
            assert composition.compose(words) == expected


def test_a_path_is_no_choice(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [schema, _self_]\nname: lu\n")
    with pytest.raises(UserError, match=r"^solver=.*mine: Allowed: auto, closed_form, "):
        composition.compose([f"solver={tmp_path / 'mine'}"])


def test_without_a_home_folder_none_is_written_to(no_home):
    assert composition.compose([]).outputs == "outputs"
    with pytest.raises(UserError, match=r"^~/runs: you have no home folder"):
        composition.compose(["outputs=~/runs"])


def test_the_specs_are_the_schema_and_name_their_own_fields():
    with pytest.raises(UserError, match=r"^lr=0: must be above 0"):
        TrainSpec(lr=0)
    with pytest.raises(UserError, match=r"^train\.lr=0\.0: must be above 0"):
        composition.compose(["train.lr=0"])
    config = composition.compose(["targets=trained"])
    request = config.target_request
    assert request.train is config.train
    assert request.target == VggTarget("vgg_small", "vgg", width=12, groups=[2, 2])
    assert request.store == Path("trained")
    assert composition.compose([]).target_request.store == Path("outputs/targets")
