"""Settings of Slurm jobs: the user's slurm.yaml, overridden by the command line."""

import pytest

from bnrecon.config.cluster_settings import ClusterSettings, config_file, read
from bnrecon.runtime.errors import UserError


@pytest.fixture(autouse=True)
def user_file(tmp_path, monkeypatch):
    """The user's file, which does not exist yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    config_file().parent.mkdir(parents=True)
    return config_file()


def test_command_line_overrides_a_folders_file_and_that_the_users(user_file, tmp_path):
    user_file.write_text("partition: own\nmem: 1G\n")
    assert read().partition == "own"
    (tmp_path / "dir").mkdir()
    assert read(tmp_path / "dir").partition == "own"
    (tmp_path / "dir" / "slurm.yaml").write_text("partition: dir\ntime: 2:00:00\n")
    settings = read(tmp_path / "dir", ["slurm.partition=line"])
    assert (settings.partition, settings.mem, settings.time) == ("line", None, 120)


def test_missing_home_folder_gives_default_settings(no_home):
    assert read() == ClusterSettings()


def test_setup_is_a_list_a_block_or_a_word(user_file):
    user_file.write_text("setup:\n  - module load cuda\n  - source env\n")
    assert read().setup == ("module load cuda", "source env")
    user_file.write_text("setup: |\n  module load cuda\n  source env\n")
    assert read().setup == ("module load cuda", "source env")
    assert read(None, ["slurm.setup=[a, b]"]).setup == ("a", "b")


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("90", 90), ("90m", 90), ("36h", 2160), ("2d", 2880), ("1:30:00", 90), ("90:30", 91)]
    + [("1-12", 2160), ("1-12:30", 2190), ("2-00:00:01", 2881)],
)
def test_times_are_read_like_sbatchs_and_with_units(text, minutes):
    assert read(None, [f"slurm.time={text}"]).time == minutes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("partiton: gpu", "slurm.yaml: partiton: did you mean 'partition'"),
        ("- gpu", "one setting per line"),
        ("a: [", "no YAML in line"),
        ("partition: a b", "without spaces"),
        ("cpus: 0", "whole number, 1 or more"),
        ("mem: lots", "500M or 8G"),
        ("time: soon", "give minutes"),
        ("setup: {a: b}", "a line of shell"),
    ],
)
def test_mistake_in_the_file_is_one_line_with_its_location(user_file, text, message):
    user_file.write_text(text)
    with pytest.raises(UserError) as raised:
        read()
    assert message in str(raised.value)
    assert str(user_file) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["slurm.memory=8G"], "did you mean 'slurm.mem'"),
        (["slurm.mem"], "give a value"),
        (["slurm.gpus=1", "slurm.gpus=2"], "given twice"),
    ],
)
def test_mistake_on_the_command_line_is_one_line(words, message):
    with pytest.raises(UserError, match=message):
        read(None, words)
