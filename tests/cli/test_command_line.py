"""The command as a whole: help, mistakes, signals and streams."""

import json
import logging
import os
import signal
import sys
from pathlib import Path

import pytest
from processes import run

from bnrecon.cli.main import main, make_parsers

HALF_TYPED = (
    "run features.name=",
    "run -m features=he_normal,",
    "study burkholz2024 ",
    "tables random_features scale=",
    "run target=v",
)
WITHOUT_TORCH = [
    ["--help"],
    ["--version"],
    ["run", "--help"],
    ["run", "--cfg", "job"],
    ["train", "--help", "target=resnet18"],
    ["study", "--help"],
    ["report", "--help"],
    ["completion", "bash"],
    *(["completion", "bash", f"bnrecon {words}"] for words in HALF_TYPED),
]
MISTAKES = [
    ["run=3"],
    ["ru"],
    ["run", "--foo"],
    ["run", "foo=3"],
    ["run", "target.widht=3"],
    ["run", "target=nothing"],
    ["run", "features.oversampling=0"],
    ["train", "train.epochs=half"],
    ["study", "burkholz"],
    ["study", "burkholz2024", "table9"],
    ["tables", "random_features", "target.width=none"],
    ["figures", "no_study"],
]


ANSWER = """
import contextlib, io, json, sys
from bnrecon.cli.main import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        with contextlib.redirect_stderr(io.StringIO()) as err:
            code = main(words)
    slow = sorted({"torch", "pandas"} & set(sys.modules))
    print(json.dumps([code, out.getvalue(), err.getvalue(), slow]))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Exit code, output, errors and slow modules loaded so far, for each command line."""
    lines = [*WITHOUT_TORCH, *MISTAKES]
    line = [sys.executable, "-P", "-c", ANSWER, json.dumps(lines)]
    done = run(line, cwd=tmp_path_factory.mktemp("here"))
    assert done.returncode == 0, done.stderr
    replies = map(json.loads, done.stdout.splitlines())
    return dict(zip(map(" ".join, lines), replies, strict=True))


@pytest.mark.parametrize("words", WITHOUT_TORCH, ids=" ".join)
def test_help_does_not_load_torch(answers, words):
    code, out, err, loaded = answers[" ".join(words)]
    assert (code, err, loaded) == (0, "", [])
    assert out


@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_mistyped_option_or_command_does_not_load_torch(answers, words):
    code, out, err, loaded = answers[" ".join(words)]
    assert (code, out, loaded) == (2, "", [])
    (line,) = err.splitlines()
    assert line.startswith("bnrecon: ")


def test_help_names_every_command_and_its_examples_are_commands(command, succeed):
    out, _ = succeed("--help")
    assert command("help")[1] == out
    commands = make_parsers()[1]
    assert set(commands) == {
        *("run", "train", "study", "tables", "figures", "status", "cancel", "report"),
        *("ls", "compare", "export", "completion"),
    }
    examples = [line.split()[1] for line in out.splitlines() if line.startswith("  bnrecon ")]
    assert set(examples) <= set(commands)
    assert all(f"\n    {name} " in out for name in commands)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run=3"], "options follow a command, as in: bnrecon run target=vgg18"),
        (["--target=vgg18"], "options follow a command"),
        (["ru"], "ru: no such command: did you mean 'run'? Allowed: cancel, compare"),
        (["run", "--target=vgg18"], "options are written without dashes, as in target=vgg18"),
        (["run", "--multrun"], "--multrun is not an option: did you mean '--multirun'?"),
        (["completion", "csh"], "completion csh: did you mean 'zsh'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistake_on_the_command_line_names_what_is_allowed(refused, words, line):
    refused(*words, line=line)


@pytest.mark.parametrize("name", make_parsers()[1])
def test_removed_current_folder_is_one_line(command, name):
    Path.cwd().rmdir()
    code, _, err = command(name)
    assert code in (1, 2)
    assert len(err.splitlines()) <= 1


def test_command_restores_signals_streams_and_logging(command):
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    arguments, errors, logger = list(sys.argv), sys.stderr.errors, logging.getLogger("bnrecon")
    assert command("-v", "run", "--cfg", "job")[0] == 0
    assert {number: signal.getsignal(number) for number in before} == before
    assert (sys.argv, sys.stderr.errors) == (arguments, errors)
    assert (logger.handlers, logger.level) == ([], logging.NOTSET)
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_closed_reader_is_no_error(shell):
    done = shell("""
        for words in --help "run --help"; do
            $BNRECON $words | sleep 0  # ends before anything is printed
            echo ${PIPESTATUS[0]}
        done
        $BNRECON --help > /dev/full
        echo $?
    """)
    assert done.stdout.split() == ["141", "141", "1"]
    assert done.stderr.startswith("bnrecon: No space left on device; ")
    assert len(done.stderr.splitlines()) == 1


def test_unwritable_log_changes_no_exit_code(shell):
    done = shell("""
        $BNRECON nope 2> /dev/full
        echo $?
        $BNRECON train scale=smoke target.groups=[1] train.epochs=1 2> /dev/full
        echo $?
    """)
    mistake, *summary, code = done.stdout.split("\n")[:-1]
    assert (mistake, code) == ("2", "0"), done.stdout
    assert summary[-1].startswith("outputs/targets/")
    assert Path(done.stdout.splitlines()[-2], "target.json").exists()


def test_characters_missing_in_the_terminal_are_escaped(shell):
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = shell("$BNRECON run --help", **plain)
    assert done.returncode == 0, done.stderr
    assert r"Uniform on \xb1sqrt(6 / fan-in)." in done.stdout


def test_main_runs_in_a_thread_without_signals(capsys):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(main, ["--version"]).result() == 0
    assert capsys.readouterr().out == "0.1.0\n"


@pytest.mark.parametrize(
    ("line", "code", "out", "err"),
    [
        ("$BNRECON --version >&-", 0, "", ""),
        ("$BNRECON run --cfg job >&-", 0, "", ""),
        ("$BNRECON run nope=1 >&-", 2, "", "bnrecon: nope is not an option"),
        ("$BNRECON train scale=smoke target.groups=[1] train.epochs=1 >&- 2>&-", 0, "", ""),
    ],
)
def test_closed_stream_changes_no_exit_code(shell, line, code, out, err):
    done = shell(line)
    assert done.returncode == code, done.stderr
    assert done.stdout == out
    assert done.stderr.startswith(err)
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_slow_modules_are_loaded_only_when_needed():
    slow = {"torch._dynamo", "scipy.integrate", "scipy.stats", "matplotlib.pyplot"}
    code = "import sys, bnrecon.run.main_job, bnrecon.reproduction.engine"
    code += f"; print({slow!r} & {{*sys.modules}})"
    assert run([sys.executable, "-c", code], check=True).stdout == "set()\n"
