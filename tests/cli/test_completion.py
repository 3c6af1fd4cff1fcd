"""Tab completion: every choice, without loading torch, in real shells where they are installed."""

import dataclasses
import importlib.resources
import shutil
from pathlib import Path

import pytest

from bnrecon.cli.completion import SHELLS, complete
from bnrecon.cli.main import make_parsers
from bnrecon.config import schema
from bnrecon.studies import registry


@pytest.fixture(scope="module")
def completed():
    commands = make_parsers()[1]
    return lambda line: complete(line, commands)


def test_commands_and_flags_are_completed(completed):
    commands = ["completion", "figures", "run", "study", "tables", "train"]
    assert set(commands) <= set(completed("bnrecon "))
    assert completed("bnrecon t") == ["tables", "train"]
    assert completed("bnrecon -q t") == ["tables", "train"]
    assert completed("bnrecon run --c") == ["--cfg", "--config-dir", "--config-name"]
    assert completed("bnrecon completion ") == ["bash", "fish", "zsh"]
    assert completed("bnrecon nothing_such ") == []


def test_every_option_is_completed(completed):
    found = completed("bnrecon run d") + completed("bnrecon run t")
    for group in ("data", "target", "train"):
        names = {f.name for spec in schema.spec_classes(group) for f in dataclasses.fields(spec)}
        assert {f"{group}=", *(f"{group}.{name}=" for name in names)} <= set(found)
    assert {"device=", "targets=", "threads="} <= set(found)


@pytest.mark.parametrize("group", schema.GROUPS)
def test_every_choice_of_a_group_is_completed(completed, group):
    folder = importlib.resources.files("bnrecon.configs") / group
    names = sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".yaml"))
    assert names
    assert completed(f"bnrecon run {group}=") == [f"{group}={name}" for name in names]


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("features.name=id", ["features.name=id_cond"]),
        ("solver.name=matrix", ["solver.name=matrix_free"]),
        ("target.features=n", ["target.features=none"]),
        ("train.precision=", ["auto", "bfloat16", "float32"]),
        ("train.nesterov=", ["false", "true"]),
        ("keep_source=f", ["keep_source=false"]),
        ("evaluate=", ["auto", "collapsed", "source"]),
        ("features.skip=", ["inner", "none", "outer"]),
        ("++device=c", ["++device=cpu", "++device=cuda"]),
        ("seeds=", []),
        ("nothing=", []),
    ],
)
def test_values_are_completed(completed, word, found):
    name = word.partition("=")[0]
    expected = [value if "=" in value else f"{name}={value}" for value in found]
    assert completed(f"bnrecon run {word}") == expected
    assert completed(f"bnrecon study burkholz2024 {word}") == expected


def test_in_a_sweep_the_value_behind_the_last_comma_is_completed(completed):
    line = "bnrecon run -m features=he_normal,orthog"
    assert completed(line) == ["features=he_normal,orthogonal"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("ls ru", ["runs"]),
        ("ls o", ["outputs="]),
        ("ls --j", ["--json"]),
        ("compare d", ["data.root="]),
        ("status gi", ["giannou2023"]),
        ("status giannou2023 o", ["outputs="]),
        ("export t", ["tensorboard", "trackio"]),
        ("export wandb tracker_f", ["tracker_folder="]),
        ("run tracker=w", ["tracker=wandb"]),
        ("study burkholz2024 --det", ["--detach"]),
        ("tables burkholz2024 --det", []),
    ],
)
def test_what_follows_each_command_is_completed(completed, line, found):
    assert completed(f"bnrecon {line}") == found


def test_paths_are_left_to_the_shell(completed):
    Path("docs").mkdir()
    for line in ("run data.root=d", "run --config-dir d", "tables do"):
        assert completed(f"bnrecon {line}") == []


def test_studies_to_cancel_are_completed(completed):
    assert completed("bnrecon cancel g") == ["giannou2023"]
    assert completed("bnrecon cancel giannou2023 g") == []
    assert completed("bnrecon cancel giannou2023 s") == ["scale="]
    assert completed("bnrecon cancel scale=s") == ["scale=smoke"]
    assert completed("bnrecon cancel data.root=") == []


def test_settings_of_slurm_are_completed_once_it_is_named(completed):
    assert completed("bnrecon study burkholz2024 cl") == ["cluster="]
    assert completed("bnrecon run -m clus") == ["cluster="]
    assert "slurm.partition=" in completed("bnrecon study burkholz2024 cluster=slurm slurm.")
    assert completed("bnrecon study burkholz2024 slurm.") == []


def test_studies_and_their_parts_are_completed(completed):
    for name in registry.STUDIES:
        assert completed(f"bnrecon study {name[:4]}") == [name]
        study = registry.find(name)
        for words in (f"study {name}", f"tables study={name}", f"figures {name} scale=smoke"):
            found = completed(f"bnrecon {words} ")
            assert found[: len(study.parts) + len(study.solvers)] == sorted(
                (*study.parts, *study.solvers)
            )
    assert completed("bnrecon study burkholz2024 table1 tab") == ["table2"]
    assert completed("bnrecon study burkholz2024 scale=") == [
        "scale=laptop",
        "scale=paper",
        "scale=smoke",
    ]
    assert "jobs=" in completed("bnrecon study burkholz2024 j")
    assert completed("bnrecon tables burkholz2024 j") == []


def test_a_half_typed_line_is_no_error(process, completed):
    assert completed("bnrecon run target='vgg1") == ["target=vgg18", "target=vgg18_normalization"]
    done = process("completion", "bash", "bnrecon run --config-dir own\0 target=")
    assert (done.returncode, done.stderr) == (0, "False\n")


TYPED = [
    ("run tar", "run tar", "targets="),
    ("run target=resnet5", "run target = resnet5", "resnet50"),
    (
        "run -m features=he_normal,orthog",
        "run -m features = he_normal,orthog",
        "he_normal,orthogonal",
    ),
    ("study burkholz2024 thres", "study burkholz2024 thres", "thresholds"),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="has no bash")
@pytest.mark.parametrize(("line", "words", "found"), TYPED)
def test_bash_replaces_what_follows_the_last_equals_sign(shell, line, words, found):
    done = shell(f"""
        printf '#!/bin/sh\nexec %s "$@"\n' "$BNRECON" > bnrecon
        chmod +x bnrecon
        PATH="$PWD:$PATH"
        eval "$(bnrecon completion bash)"
        compopt() {{ :; }}  # which works while bash completes, only
        COMP_LINE='bnrecon {line}'
        COMP_POINT=${{#COMP_LINE}}
        COMP_WORDS=(bnrecon {words})
        _bnrecon
        printf '%s\n' "${{COMPREPLY[@]}}"
    """)
    assert found in done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("name", SHELLS)
def test_the_script_of_a_shell_is_printed_and_has_no_error_in_it(command, shell, name):
    code, out, err = command("completion", name)
    assert (code, err) == (0, "")
    assert f"completion {name}" in out
    if shutil.which(name):
        Path("script").write_text(out)
        flag = "--no-execute" if name == "fish" else "-n"
        assert shell(f"{name} {flag} script").stderr == ""
