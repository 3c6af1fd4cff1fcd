"""Sweeps: runs that fail, die or are stopped do not affect the table, under any executor."""

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


def plan(*words):
    return hydra_app.plan(make_parsers()[1]["run"].read([*SWEEP, *words]))


@pytest.fixture
def start():
    """Start sweeps as a terminal does, each in a process group that ends with the test."""
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


def test_failing_run_does_not_affect_others_and_sets_the_exit_code(command, succeed, refused):
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
    table = (FOLDER / "table.md").read_bytes()
    line = f"hydra.sweep.dir={FOLDER}: has a table.md that is not this sweep's"
    refused(*words, "features=id_cond", line=line)
    out, err = succeed(*words, "features=id_cond", "hydra.sweep.dir=other")  # nothing is repeated
    assert "1 of 1 runs are done already" in err
    assert "id_cond" in out
    assert (FOLDER / "table.md").read_bytes() == table


def test_mistake_in_one_run_is_reported_before_any_begins(refused):
    refused("run", *SWEEP, "seeds=[0],[]", line="seeds=[]: give one or more")
    refused("run", "-m", "scale=smoke", "outputs=a,b", line="outputs: all runs of a sweep need")
    line = "threads: does not change the folder of a run, so rows of the sweep would be one run"
    refused("run", *SWEEP, "threads=1,2", "features=id_cond,he_normal", line=line)
    refused("run", *SWEEP, "imports=[json],[csv]", line="imports: all runs of a sweep")


@pytest.mark.parametrize("who", [(), ("cluster=local",)])
def test_missing_device_or_library_is_reported_once_before_any_run(refused, monkeypatch, who):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused("run", *SWEEP, "seeds=[0],[1]", "device=cuda", *who, line="device=cuda: torch sees no")
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    words = ("run", *SWEEP, "seeds=[0],[1]", "tracker=wandb", *who)
    refused(*words, line="tracker=wandb: wandb is not installed")
    assert not list(Path("out").glob("*/*/jobs"))


def test_jobs_need_a_folder_where_status_and_cancel_look(refused):
    words = ("run", "-m", "scale=smoke", "seeds=[0],[1]", "cluster=local", "hydra.sweep.dir=mine")
    refused(*words, line="hydra.sweep.dir=mine: with cluster=, give a folder in outputs/sweeps")
    refused("cancel", "mine", "outputs=.", line="mine: no such study or sweep in .; ")


def test_foreign_table_is_not_overwritten(refused):
    table = Path("mine/table.md")
    table.parent.mkdir()
    table.write_text("mine")
    words = ("run", "-m", "scale=smoke", "seeds=[0],[1]", "hydra.sweep.dir=mine")
    refused(*words, line="hydra.sweep.dir=mine: has a table.md that is not this sweep's")
    assert table.read_text() == "mine"


def test_sweep_folder_depends_on_options_not_on_verbosity():
    parser = make_parsers()[1]["run"]
    same = (["-m"], ["-m", "-q"], ["--verbose", "-m"], ["-mq"], ["-vm"], ["--multirun"])
    same = (*same, ["-m", "--detach"])
    folders = [hydra_app.plan(parser.read(words)).folder for words in (*same, ["-m", "seeds=[1]"])]
    assert len(set(folders[:-1])) == 1
    assert len(set(folders)) == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "jobs=2", "--cfg=job"], "jobs=2: not with --cfg, --info or --hydra-help"),
        (["run", "--detach"], "--detach: is for sweeps; add -m"),
        (["run", "jobs=2", "cluster=local"], "cluster=local: is for sweeps; add -m"),
        (["run", "jobs=2", "hydra.run.dir=mine"], "hydra.run.dir=mine: has no effect on a"),
        (["run", "hydra.run.dir=mine"], "hydra.run.dir=mine: has no effect on a single run"),
        (["run", "-m", "--detach"], "--detach: is for cluster=slurm and cluster=local"),
        (["run", "-m", "slurm.mem=8G"], "slurm.mem=8G: is for cluster=slurm"),
    ],
)
def test_misplaced_option_is_refused(refused, words, line):
    refused(*words, line=line)


def test_yaml_file_of_the_user_may_request_a_sweep(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\nhydra: {sweeper: {params: {seeds: '[1],[2]'}}}\ntarget: {width: 8}\n"
    )
    sweep = plan("experiment=mine", f"--config-dir={tmp_path}", "features=id_cond,orthogonal")
    runs = [composed for _, composed in sweep.runs]
    assert [list(run.seeds) for run in runs] == [[1], [1], [2], [2]]
    assert {run.target.width for run in runs} == {8}


@pytest.mark.process
def test_worker_imports_the_users_modules_before_unpickling_a_run():
    Path("mine.py").write_text("open('imported', 'a').write('once ')\n")
    [run] = sweeps._runs(plan("imports=[mine]"))
    line = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).key)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", line], input=pickle.dumps(run), capture_output=True, check=True
    )
    assert done.stdout.decode().split()[-1] == run.key
    assert Path("imported").read_text() == "once once "


def test_job_plans_the_same_runs_again():
    words = [*SWEEP, "features=id_cond,orthogonal"]
    again = sweeps.plan_again(words)
    assert {run.key for run in sweeps._runs(plan(words[-1]))} < set(again)
    assert sum(key.startswith("target-") for key in again) == 1  # which both runs read


@pytest.mark.process
def test_processes_share_the_layers_of_one_run(succeed):
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


@pytest.mark.process
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_processes_end_with_the_command_and_save_checkpoints(start, how):
    sweep = start("train.epochs=9999,20000", "jobs=2")
    assert wait_until(lambda: len(list(Path("out").glob("targets/*/.lock"))) == 2)
    logs = [FOLDER / f"sweep-process-{number}.log" for number in (1, 2)]
    assert wait_until(lambda: all("epoch 1/" in log.read_text() for log in logs))
    children = psutil.Process(sweep.pid).children(recursive=True)
    if how == signal.SIGINT:
        os.killpg(sweep.pid, how)  # like Ctrl-C in a terminal
    else:
        sweep.kill()
    code, _, err = finish(sweep)
    assert wait_until(lambda: all(has_ended(child.pid) for child in children))
    assert len(list(Path("out").glob("targets/*/checkpoint.safetensors"))) == 2
    if how == signal.SIGINT:
        assert code == 130, err
        assert "Traceback" not in err


@pytest.mark.process
def test_detached_sweep_is_collected(command, succeed):
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


def test_interpolation_is_resolved_per_run(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        "defaults: [run, _self_]\noutputs: ${hydra:runtime.choices.features}\n"
    )
    words = ("target.width=2,3", "train.epochs=${target.width}", "train.warmup_epochs=0")
    runs = hydra_app.plan(make_parsers()[1]["run"].read(["-m", *words])).runs
    assert [composed.train.epochs for _, composed in runs] == [2, 3]
    words = (f"--config-dir={tmp_path}", "--config-name=mine", "features=he_normal,id_cond")
    runs = hydra_app.plan(make_parsers()[1]["run"].read(["-m", *words])).runs
    assert [composed.outputs for _, composed in runs] == ["he_normal", "id_cond"]


def test_hydra_options_of_sweeps_are_refused_for_single_runs(refused):
    refused("run", "hydra.job.chdir=true", line="hydra.job.chdir=true: has no effect")
    refused("run", "-p", "target", line="--package=target: is for --cfg")
    words = ["experiment=quickstart", "hydra.mode=RUN"]
    assert not hydra_app.plan(make_parsers()[1]["run"].read(words)).is_sweep


@pytest.mark.process
def test_sweep_needs_no_open_streams_and_no_utf8(shell):
    """Nor a reader: results that cannot be printed are stored."""
    words = "run -m scale=smoke target.groups=[1] train.epochs=1 target.width=2 outputs=ö"
    for number, (start, streams) in enumerate(
        (("jobs=2", ">&- 2>&-"), ("jobs=2", ""), ("", "| true"))
    ):
        line = f"$BNRECON {words} 'seeds=[{number}],[{number + 10}]' {start} {streams}"
        done = shell(line, PYTHONIOENCODING="ascii")
        assert done.returncode == 0, done.stderr
        assert "failed" not in done.stderr
    assert len(list(Path("ö/runs").glob("*/result.json"))) == 6
    assert len(list(Path("ö/sweeps").glob("*/table.md"))) == 3


@pytest.mark.process
def test_runs_without_images_do_not_stop_the_others(command):
    words = ("data=digits,cifar10", "data.download=false", "seeds=[0],[1]", "target.width=2")
    code, out, err = command("run", *SWEEP, *words, "train.epochs=1", "jobs=2")
    assert code == 2
    assert "warning: failed" in err
    assert len(list(Path("out/runs").glob("digits*/result.json"))) == 2


def test_own_folder_of_a_sweep_may_have_lost_its_progress(succeed):
    words = ("run", *SWEEP[:-1], "train.epochs=1", "target.width=2", "seeds=[0],[1]")
    out, _ = succeed(*words)
    folder = Path(out.splitlines()[-1])
    (folder / "progress-sweep.jsonl").write_text("")
    assert succeed(*words)[0].splitlines()[-1] == str(folder)


def test_forced_folder_of_a_sweep_is_used(succeed):
    words = ("run", *SWEEP[:-1], "train.epochs=1", "target.width=2", "seeds=[0],[1]")
    out, _ = succeed(*words, "++hydra.sweep.dir=mine")
    assert out.splitlines()[-1] == "mine"
    assert Path("mine/table.md").exists()


@pytest.mark.process
def test_sweep_of_finished_runs_is_recognized(succeed):
    words = ("run", *SWEEP[:-1], "train.epochs=1", "features=id_cond", "solver=closed_form")
    succeed(*words, "seeds=[0],[1]", "hydra.sweep.dir=first")
    for who in (("jobs=2",), ()):  # computed in another way it is the same sweep
        succeed(*words, "seeds=[1],[0]", "hydra.sweep.dir=second", *who)
