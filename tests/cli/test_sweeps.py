"""A sweep: runs that fail, die or are stopped cost its table nothing, whoever computes them."""

import contextlib
import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path

import processes
import psutil
import pytest
import torch
from processes import finish, has_ended, wait_until

from bnrecon.cli import hydra_app, sweeps
from bnrecon.cli.main import make_parsers
from bnrecon.jobs import record
from bnrecon.reporting.result import RunResult
from bnrecon.runtime import extras

FOLDER = Path("out/sweeps/one")
SWEEP = ("-m", "scale=smoke", "target.groups=[1]", "outputs=out", f"hydra.sweep.dir={FOLDER}")
JOBLIB = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")


def plan(*words):
    return hydra_app.plan(make_parsers()[1]["run"].read([*SWEEP, *words]))


@pytest.fixture
def start():
    """Start sweeps as a terminal does: each in a group of processes, which ends with the test."""
    started = []

    def run(*words):
        started.append(processes.start(*SWEEP, *words, start_new_session=True))
        return started[-1]

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    for submission in record.submissions(FOLDER):
        submission.queue().cancel(list(submission.jobs))


def test_a_run_that_fails_costs_the_others_nothing_and_decides_the_exit_code(command, succeed):
    words = ("run", *SWEEP, "features=he_normal,id_cond", "solver=closed_form", "train.epochs=1")
    code, out, err = command(*words)
    assert code == 2, err
    [failed] = [line for line in err.splitlines() if line.startswith("warning: failed")]
    assert failed.startswith("warning: failed (exit code 2): features=he_normal: solver=closed_")
    assert "McNemar p" in (FOLDER / "table.md").read_text(encoding="utf-8")
    row = next(line for line in out.splitlines() if line.startswith("id_cond"))
    assert len(row) < 120
    assert "he_normal" not in out
    assert out.splitlines()[-1] == str(FOLDER)
    out, err = succeed(*words, "features=id_cond")  # what is finished is not run again
    assert "1 of 1 runs are done already" in err
    assert "id_cond" in out


def test_what_is_wrong_with_one_run_is_said_before_any_begins(refused):
    refused("run", *SWEEP, "seeds=[0],[]", line="seeds=[]: give one or more")
    refused("run", "-m", "scale=smoke", "outputs=a,b", line="outputs: all runs of a sweep need")


@pytest.mark.parametrize("who", [(), ("cluster=local",)])
def test_what_this_machine_lacks_is_said_once_before_any_run_begins(refused, monkeypatch, who):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused("run", *SWEEP, "seeds=[0],[1]", "device=cuda", *who, line="device=cuda: torch sees no")
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    words = ("run", *SWEEP, "seeds=[0],[1]", "tracker=wandb", *who)
    refused(*words, line="tracker=wandb: wandb is not installed")
    assert not list(Path("out").glob("*/*/jobs"))


def test_jobs_are_given_only_where_status_and_cancel_look_for_them(refused):
    words = ("run", "-m", "scale=smoke", "seeds=[0],[1]", "cluster=local", "hydra.sweep.dir=mine")
    refused(*words, line="hydra.sweep.dir=mine: with cluster=, give a folder in outputs/sweeps")
    refused("cancel", "mine", "outputs=.", line="mine: no such study or sweep in .; ")


def test_a_table_of_somebody_else_is_not_taken_for_a_sweeps(refused):
    table = Path("mine/table.md")
    table.parent.mkdir()
    table.write_text("mine")
    words = ("run", "-m", "scale=smoke", "seeds=[0],[1]", "hydra.sweep.dir=mine")
    refused(*words, line="hydra.sweep.dir=mine: has a table.md that is not a sweep's")
    assert table.read_text() == "mine"


def test_the_folder_of_a_sweep_is_named_by_its_options_not_by_how_much_is_shown():
    parser = make_parsers()[1]["run"]
    same = (["-m"], ["-m", "-q"], ["--verbose", "-m"], ["-mq"], ["-vm"], ["--multirun"])
    same = (*same, ["-m", "--detach"])
    folders = [hydra_app.plan(parser.read(words)).folder for words in (*same, ["-m", "seeds=[1]"])]
    assert len(set(folders[:-1])) == 1
    assert len(set(folders)) == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "hydra/launcher=submitit_slurm"], "launchers run sweeps; add -m"),
        (["train", "hydra/launcher=joblib"], "launchers run sweeps, with bnrecon run -m"),
        (["run", "-m", "hydra.launcher.partition=gpu"], "is not an option of this launcher"),
        (["run", "jobs=2", "--cfg=job"], "jobs=2: not with --cfg, --info or --hydra-help"),
        (["run", "--detach"], "--detach: is for sweeps; add -m"),
        (["run", "jobs=2", "cluster=local"], "cluster=local: is for sweeps; add -m"),
        (["run", "jobs=2", "hydra.run.dir=mine"], "hydra.run.dir=mine: has no effect on a"),
        (["run", "hydra.run.dir=mine"], "hydra.run.dir=mine: has no effect on a single run"),
        (["run", "-m", "--detach"], "--detach: is for cluster=slurm and cluster=local"),
        (["run", "-m", "slurm.mem=8G"], "slurm.mem=8G: is for cluster=slurm"),
        (["run", "-m", "jobs=2", "hydra/launcher=joblib"], "jobs=2: not with hydra/launcher="),
    ],
)
def test_an_option_out_of_place_is_refused(refused, words, line):
    if "joblib" in " ".join(words):
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    refused(*words, line=line)


def test_a_users_launcher_and_yaml_files_are_hydras(tmp_path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    assert plan("hydra/launcher=joblib") is None
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nhydra: {sweeper: {params: {seeds: '[1],[2]'}}}\ntarget: {width: 8}\n"
    )
    sweep = plan("experiment=mine", f"--config-dir={tmp_path}", "features=id_cond,orthogonal")
    runs = [composed for _, composed in sweep.runs]
    assert [list(run.seeds) for run in runs] == [[1], [1], [2], [2]]
    assert {run.target.width for run in runs} == {8}


@pytest.mark.process
def test_another_process_has_the_users_modules_before_it_looks_at_a_run():
    Path("mine.py").write_text("open('imported', 'a').write('once ')\n")
    [run] = sweeps._runs(plan("imports=[mine]"))
    line = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).key)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", line], input=pickle.dumps(run), capture_output=True, check=True
    )
    assert done.stdout.decode().split()[-1] == run.key
    assert Path("imported").read_text() == "once once "


def test_a_job_plans_the_same_runs_again():
    words = [*SWEEP, "features=id_cond,orthogonal"]
    again = sweeps.plan_again(words)
    assert {run.key for run in sweeps._runs(plan(words[-1]))} < set(again)
    assert sum(key.startswith("target-") for key in again) == 1  # which both read


@pytest.mark.process
def test_the_layers_of_one_run_are_shared_by_processes(succeed):
    words = ("run", *SWEEP[1:-1], "train.epochs=1", "seeds=[4]")
    out, err = succeed(*words, "jobs=2")
    [path] = Path("out/runs").glob("*/result.json")
    assert out.splitlines()[-1] == str(path.parent)
    assert "seed 4: 2 layers by 2 processes" in err
    logs = [file.read_text() for file in path.parent.glob("layers-process-*.log")]
    assert sum(log.count("residual") for log in logs) >= 2
    shared = RunResult.read(path).layers
    succeed(*words, "outputs=alone")
    [path] = Path("alone/runs").glob("*/result.json")
    for here, there in zip(RunResult.read(path).layers, shared, strict=True):
        assert (here.name, here.digest) == (there.name, there.digest)
        assert there.relative_error == pytest.approx(here.relative_error, rel=0.1)
        assert there.relative_error < 1e-10


def is_training(count):
    return lambda: len(list(Path("out").glob("targets/*/.lock"))) == count


@pytest.mark.process
@pytest.mark.parametrize("words", [("jobs=2",), JOBLIB])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_command_and_save_what_they_have(start, words, how):
    if words == JOBLIB:
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    sweep = start("train.epochs=9999,20000", *words)
    assert wait_until(is_training(2))
    if words != JOBLIB:  # whose processes notice a killed command a second later
        logs = [FOLDER / f"sweep-process-{number}.log" for number in (1, 2)]
        assert wait_until(lambda: all("epoch 1/" in log.read_text() for log in logs))
    children = psutil.Process(sweep.pid).children(recursive=True)
    if how == signal.SIGINT:
        os.killpg(sweep.pid, how)  # as Ctrl-C in a terminal does
    else:
        sweep.kill()
    code, _, err = finish(sweep)
    assert wait_until(lambda: all(has_ended(child.pid) for child in children))
    if (words, how) != (JOBLIB, signal.SIGINT):  # joblib kills its processes itself
        assert len(list(Path("out").glob("targets/*/checkpoint.safetensors"))) == 2
    if how == signal.SIGINT:
        assert code == 130, err
        assert "Traceback" not in err


@pytest.mark.process
def test_a_sweep_that_was_left_to_its_jobs_is_collected(command, succeed):
    words = ("run", *SWEEP, "features=he_normal,id_cond", "solver=closed_form", "cluster=local")
    out, _ = succeed(*words, "train.epochs=1", "--detach")
    assert re.search(
        r"1 job \(cluster=local\): \d+\nlogs: .*bnrecon cancel one outputs=out", out, re.DOTALL
    )
    [submission] = record.submissions(FOLDER)
    assert wait_until(lambda: len(submission.reports.outcomes(submission.keys)) == 3)
    code, out, err = command(*words, "train.epochs=1")
    assert code == 2, err
    assert "failed (exit code 2): features=he_normal: solver=closed_form solves id_cond" in err
    assert f"; log: {submission.folder}" in err
    assert "id_cond" in out
    assert record.submissions(FOLDER) == []


@pytest.mark.process
def test_hydras_launchers_run_all_and_then_say_what_failed(start):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    words = (*JOBLIB, "train.epochs=1")
    code, out, err = finish(start(*words, "features=he_normal,id_cond", "solver=closed_form"))
    assert code == 1, err
    assert "id_cond" in out
    assert "bnrecon: solver=closed_form solves id_cond" in err
    assert "bnrecon: failed (exit code 2): " in err
    assert "Traceback" not in err


def test_an_interpolation_is_of_the_run_that_it_belongs_to(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "defaults: [run, _self_]\noutputs: ${hydra:runtime.choices.features}\n"
    )
    words = ("target.width=2,3", "train.epochs=${target.width}", "train.warmup_epochs=0")
    runs = hydra_app.plan(make_parsers()[1]["run"].read(["-m", *words])).runs
    assert [composed.train.epochs for _, composed in runs] == [2, 3]
    words = (f"--config-dir={tmp_path}", "--config-name=mine", "features=he_normal,id_cond")
    runs = hydra_app.plan(make_parsers()[1]["run"].read(["-m", *words])).runs
    assert [composed.outputs for _, composed in runs] == ["he_normal", "id_cond"]


def test_options_of_hydra_that_a_single_run_cannot_have_are_refused(refused):
    refused("run", "hydra.job.chdir=true", line="hydra.job.chdir=true: has no effect")
    refused("run", "-p", "target", line="--package=target: is for --cfg")
    words = ["experiment=quickstart", "hydra.mode=RUN"]
    assert not hydra_app.plan(make_parsers()[1]["run"].read(words)).is_sweep


@pytest.mark.process
def test_a_sweep_of_finished_runs_is_known_again(succeed):
    words = ("run", *SWEEP[:-1], "train.epochs=1", "features=id_cond", "solver=closed_form")
    succeed(*words, "seeds=[0],[1]", "hydra.sweep.dir=first")
    for _ in range(2):
        succeed(*words, "seeds=[1],[0]", "hydra.sweep.dir=second")
