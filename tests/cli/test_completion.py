"""Tab completion: every choice, without loading torch, in real shells where installed."""

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


def test_commands_are_completed(completed):
    assert set(make_parsers()[1]) <= set(completed("bnrecon "))
    assert completed("bnrecon nothing_such ") == []


def test_every_option_is_completed(completed):
    completions = completed("bnrecon run d") + completed("bnrecon run t")
    for group in ("data", "target", "train"):
        names = {f.name for spec in schema.spec_classes(group) for f in dataclasses.fields(spec)}
        assert {f"{group}=", *(f"{group}.{name}=" for name in names)} <= set(completions)
    assert {"device=", "targets=", "threads="} <= set(completions)


@pytest.mark.parametrize("group", schema.GROUPS)
def test_every_choice_of_a_group_is_completed(completed, group):
    folder = importlib.resources.files("bnrecon.configs") / group
    names = sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".yaml"))
    assert names
    assert completed(f"bnrecon run {group}=") == [f"{group}={name}" for name in names]


@pytest.mark.parametrize(
    ("word", "completions"),
    [
        ("features.name=id", ["features.name=id_cond"]),
        ("train.precision=", ["auto", "bfloat16", "float32"]),
        ("train.nesterov=", ["false", "true"]),
        ("keep_source=f", ["keep_source=false"]),
        ("++device=c", ["++device=cpu", "++device=cuda"]),
        ("seeds=", []),
    ],
)
def test_values_are_completed(completed, word, completions):
    name = word.partition("=")[0]
    expected = [value if "=" in value else f"{name}={value}" for value in completions]
    assert completed(f"bnrecon run {word}") == expected
    assert completed(f"bnrecon study burkholz2024 {word}") == expected


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("t", ["tables", "train"]),
        ("-q t", ["tables", "train"]),
        ("completion ", ["bash", "fish", "zsh"]),
        ("run --c", ["--cfg", "--config-dir", "--config-name"]),
        ("run -m features=he_normal,orthog", ["features=he_normal,orthogonal"]),
        ("run -m clus", ["cluster="]),
        ("run tracker=w", ["tracker=wandb"]),
        ("run target='vgg1", ["target=vgg18", "target=vgg18_normalization"]),
        ("ls o", ["outputs="]),
        ("compare d", ["data.root="]),
        ("status giannou2023 o", ["outputs="]),
        ("export wandb tracker_f", ["tracker_folder="]),
        ("study burkholz2024 --det", ["--detach"]),
        ("study burkholz2024 cl", ["cluster="]),
        ("study burkholz2024 slurm.", []),
        ("study burkholz2024 cluster=slurm slurm.part", ["slurm.partition="]),
        ("study burkholz2024 table1 tab", ["table2"]),
        ("study burkholz2024 scale=s", ["scale=smoke"]),
        ("study burkholz2024 j", ["jobs="]),
        ("tables burkholz2024 j", []),
        ("tables burkholz2024 --det", []),
        ("cancel g", ["giannou2023"]),
        ("cancel giannou2023 g", []),
        ("cancel giannou2023 s", ["scale="]),
        ("cancel data.root=", []),
    ],
)
def test_arguments_of_each_command_are_completed(completed, line, completions):
    assert completed(f"bnrecon {line}") == completions


def test_paths_are_left_to_the_shell(completed):
    Path("docs").mkdir()
    for line in ("run data.root=d", "run --config-dir d", "tables do"):
        assert completed(f"bnrecon {line}") == []


def test_studies_and_parts_are_completed(completed):
    for name in registry.STUDIES:
        assert completed(f"bnrecon study {name[:4]}") == [name]
        study = registry.find(name)
        for words in (f"study {name}", f"tables study={name}", f"figures {name} scale=smoke"):
            completions = completed(f"bnrecon {words} ")
            assert completions[: len(study.parts) + len(study.solvers)] == sorted(
                (*study.parts, *study.solvers)
            )


def test_half_typed_line_is_no_error(process):
    done = process("completion", "bash", "bnrecon run --config-dir own\0 target=")
    assert (done.returncode, done.stderr) == (0, "False\n")


TYPED = [
    ("run target=resnet5", "run target = resnet5", "resnet50"),
    (
        "run -m features=he_normal,orthog",
        "run -m features = he_normal,orthog",
        "he_normal,orthogonal",
    ),
]


@pytest.mark.skipif(shutil.which("bash") is None, reason="has no bash")
@pytest.mark.parametrize(("line", "words", "completion"), TYPED)
def test_bash_replaces_the_text_after_the_last_equals_sign(shell, line, words, completion):
    done = shell(f"""
        printf '#!/bin/sh\nexec %s "$@"\n' "$BNRECON" > bnrecon
        chmod +x bnrecon
        PATH="$PWD:$PATH"
        eval "$(bnrecon completion bash)"
        compopt() {{ :; }}  # works only while bash completes
        COMP_LINE='bnrecon {line}'
        COMP_POINT=${{#COMP_LINE}}
        COMP_WORDS=(bnrecon {words})
        _bnrecon
        printf '%s\n' "${{COMPREPLY[@]}}"
    """)
    assert completion in done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("name", SHELLS)
def test_shell_script_is_printed_and_valid(command, shell, name):
    code, out, err = command("completion", name)
    assert (code, err) == (0, "")
    assert f"completion {name}" in out
    if shutil.which(name):
        Path("script").write_text(out)
        flag = "--no-execute" if name == "fish" else "-n"
        assert shell(f"{name} {flag} script").stderr == ""
