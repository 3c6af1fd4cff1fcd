"""Options: how choices are composed, what help shows, and the specs that are their schema."""

from pathlib import Path

import pytest

from bnrecon.config import composition, help, schema
from bnrecon.runtime.errors import UserError
from bnrecon.targets.spec import TrainSpec, VggTarget


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
