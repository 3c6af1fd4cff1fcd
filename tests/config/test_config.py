"""The command line's words: every mistake is one line with the nearest right word and exit code 2."""

import os
import subprocess
import sys

import pytest

MISTAKES = [
    ("target.widht=3", "did you mean 'target.width'"),
    ("+target.extra=3", "target.extra is not an option"),
    ("+extra=3", "extra is not an option"),
    ("tarzet.width=3", "did you mean 'target'"),
    ("targe=vgg", "did you mean 'target'"),
    ("target=vg18", "did you mean 'vgg18'"),
    ("features=henormal", "did you mean 'he_normal'"),
    ("target.width=wide", "target.width=wide: must be a whole number"),
    ("solver.tolerance=small", "must be a number"),
    ("features.strict=maybe", "must be true or false"),
    ("target.width=-2", "must be above 0"),
    ("train.lr=0", "must be above 0"),
    ("train.lr=nan", "must be above 0"),
    ("train.momentum=1", "from 0 to below 1"),
    ("seeds=3", "must be a list"),
    ("seeds=[]", "give one or more different seeds"),
    ("seeds=[1,1]", "give one or more different seeds"),
    ("seeds=[0", "could not read"),
    ("target.groups=[]", "give the number of convolutions"),
    ("target.activation=rellu", "did you mean 'relu'"),
    ("device=gpu", "did you mean 'cpu'"),
    ("evaluate=both", "Allowed: auto, collapsed, source"),
    ("features.activation=swish", "Allowed: identity"),
    ("features.width=3", "below the minimum width n - c2 + 1 = 97"),
    ("features.width=many", "give a number of features"),
    ("features.width=200 features.excess=2", "give at most one of"),
    ("features=id_cond features.excess=5", "id_cond has 108"),
    ("solver=lu features.oversampling=1.5", "needs a square system"),
    ("solver=closed_form", "whose M is orthogonal"),
    ("train.time_limit=soon", "as in 30m"),
    ("imports=[no_such_module]", "importable from here"),
    ("data=folder", "data=folder needs data.root"),
    ("data=cifar10 data.root=/no/such/folder", "no such folder"),
    ("--config-dir=/no/such/folder", "not found"),
    ("target=vgg_schema", "target.name has no value"),
    ("target=VGG18", "did you mean 'vgg18'"),
    ("vgg18", "write name=value without spaces"),
    ("--target=vgg18", "without dashes, as in target=vgg18"),
    ("data=cifar10 data.root=~/no/such/folder", "no such folder"),
    ("data=cifar10 target.activation=rellu", "did you mean 'relu'"),
    ("data.side=16", "data.side is for data=folder"),
    ("--confg-dir", "did you mean '--config-dir'"),
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


def test_own_yaml_and_own_modules_are_found(command, tmp_path, monkeypatch):
    (tmp_path / "configs" / "target").mkdir(parents=True)
    (tmp_path / "configs" / "target" / "mine.yaml").write_text(
        "defaults: [custom_schema, _self_]\nname: mine\nfamily: my_net\nwidth: 5\noptions: {hidden: 6}\n"
    )
    (tmp_path / "my_own_parts.py").write_text(
        "import torch\nimport bnrecon\n\n"
        "@bnrecon.register_target('my_net')\ndef my_net(shape, classes, width, hidden):\n"
        "    n = shape[0] * shape[1] * shape[2]\n"
        "    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(n, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes))\n\n"
        "@bnrecon.register_features('three_signs')\ndef three_signs(shape, width, stream):\n"
        "    first = stream.normal((width, shape.inputs), 'a')\n"
        "    return first, stream.normal((shape.outputs, width, *shape.kernel), 'b').sign()\n"
    )
    (tmp_path / "configs" / "features").mkdir()
    (tmp_path / "configs" / "features" / "three_signs.yaml").write_text(
        "defaults: [schema, _self_]\nname: three_signs\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, err = command(
        "run",
        "--config-dir=configs",
        "target=mine",
        "features=three_signs",
        "imports=[my_own_parts]",
        "scale=smoke",
        "target.width=5",
        "outputs=out",
    )
    assert code == 0, err
    assert "mine" in out
    assert "three_signs" in out


def shell(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "bnrecon.cli", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | environment,
    )


def test_completion_works_behind_the_subcommand():
    assert shell("-sc", "query=bash", COMP_LINE="bnrecon r").stdout.split() == ["run"]
    assert (
        "target=vgg18"
        in shell("-sc", "query=bash", COMP_LINE="bnrecon run target=v").stdout.split()
    )


def test_help_and_unknown_words():
    assert "bnrecon run target=vgg18" in shell("--help").stdout
    wrong = shell("rum")
    assert wrong.returncode == 2
    assert "did you mean 'run'" in wrong.stderr
    assert "bnrecon run target=vgg18" in shell("target=vgg18").stderr
    shown = shell("run", "--help").stdout
    assert "features=orthogonal" in shown
    assert "he_normal" in shown


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("width=4", "did you mean features.width or target.width?"),
        ("epochs=3", "did you mean train.epochs?"),
        ("seeds=0,1", "write a list as seeds=[0,1]; several values are a sweep, with -m"),
    ],
)
def test_the_usual_slips_are_answered_with_what_was_meant(command, tmp_path, word, line):
    code, _, err = command("run", word, f"outputs={tmp_path / 'out'}")
    assert code == 2
    assert line in err
