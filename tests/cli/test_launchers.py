"""Sweeps in other processes: jobs that fail, die, are cancelled or requeued lose nothing."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import processes
import psutil
import pytest
from processes import finish, wait_until
from submitted_sweep import FOLDER, SWEEP, jobs_of, log_of, started_sweeps

from bnrecon.runtime import files

LOCAL = "hydra/launcher=submitit_local"

pytest.importorskip("hydra_plugins.hydra_submitit_launcher")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="submitit's processes are POSIX's"),
]


@pytest.fixture
def start():
    with started_sweeps() as run:
        yield run


def task_of(job):
    """The process in which submitit's local job computes."""
    for child in psutil.Process(int(job)).children():
        if "submitit.core._submit" in child.cmdline():
            return child
    return None


def has_ended(process):
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def training_processes(sweep):
    """The processes of a sweep that hold a target, as they train it."""
    found = []
    for child in psutil.Process(sweep.pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            paths = [Path(file.path) for file in child.open_files()]
            if any(path.name == ".lock" and "targets" in path.parts for path in paths):
                found.append(child)
    return found


def test_a_job_that_fails_and_one_that_is_killed_cost_the_table_nothing(start):
    sweep = start(LOCAL, "features=id_cond,he_normal,ortho_cond", "solver=closed_form")
    jobs = jobs_of(sweep)
    assert len(jobs) == 3
    assert f"kill {' '.join(jobs)}" in sweep.stderr.readline()
    assert wait_until(lambda: task_of(jobs[2]))
    task_of(jobs[2]).kill()
    code, out, err = finish(sweep)
    assert code == 2, err
    assert "id_cond" in out
    assert "defect" not in err
    assert "Traceback" not in err
    failed, killed = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert "features=he_normal" in failed
    assert f"(job {jobs[1]}): solver=closed_form solves id_cond" in failed
    assert f"log: {FOLDER}/jobs/{jobs[1]}_0_log.out" in failed
    assert "features=ortho_cond" in killed
    assert f"(job {jobs[2]}): it ended without a result" in killed
    assert (FOLDER / "table.md").read_text(encoding="utf-8") in out


def test_a_job_is_requeued_at_its_time_limit_until_it_has_the_uninterrupted_numbers(start):
    """SIGUSR2 is what comes before a time limit; the first time it comes while libraries load."""
    words = ("train.epochs=120",)
    sweep = start(LOCAL, *words)
    (job,) = jobs_of(sweep)
    for sign, times in (("\n[0] ", 1), ("epoch 2/", 1), ("epoch 60/", 1)):
        assert wait_until(lambda s=sign, n=times: log_of(job).count(s) >= n), log_of(job)
        task = task_of(job)
        task.send_signal(signal.SIGUSR2)
        assert wait_until(lambda t=task: has_ended(t))
    code, out, err = finish(sweep)
    log = log_of(job)
    assert code == 0, err + log
    assert log.count("Requeued job") >= 2, log
    assert "SIGUSR2 was received; training is saved at step" in log
    assert "defect" not in log + err
    record = files.read_json(FOLDER / "job-0.json")
    found = Path(record["folder"])
    targets = [path.read_bytes() for path in Path("out/targets").rglob("target.safetensors")]
    code, _, err = finish(processes.start(*SWEEP[1:3], "outputs=whole", *words))
    assert code == 0, err
    whole = Path("whole") / found.relative_to("out")
    assert targets == [p.read_bytes() for p in Path("whole/targets").rglob("target.safetensors")]
    numbers = [files.read_json(folder / "result.json") for folder in (found, whole)]
    assert numbers[0]["source"]["accuracy"] == numbers[1]["source"]["accuracy"]


def test_an_interrupted_sweep_names_the_jobs_that_go_on_and_how_to_cancel_them(start):
    sweep = start(LOCAL, "train.epochs=20000")
    (job,) = jobs_of(sweep)
    assert wait_until(lambda: "epoch 2/" in log_of(job))
    task = task_of(job)
    sweep.send_signal(signal.SIGINT)  # to the command alone
    code, _, err = finish(sweep)
    assert code == 130
    assert f"submitted jobs go on: {job}; to cancel them: kill {job}" in err
    assert not has_ended(task)
    os.kill(int(job), signal.SIGTERM)
    assert wait_until(lambda: has_ended(task))
    assert files.read_json(FOLDER / "job-0.json")["code"] == 130
    assert "SIGTERM was received; training is saved" in log_of(job)


def test_ctrl_c_in_a_terminal_leaves_no_process_of_joblib(start):
    sweep = start("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "train.epochs=9999,20000")
    leader = psutil.Process(sweep.pid)
    assert wait_until(lambda: len(list(Path("out").glob("targets/*/.lock"))) == 2)
    processes = leader.children(recursive=True)
    os.killpg(sweep.pid, signal.SIGINT)
    code, _, err = finish(sweep)
    assert code == 130, err
    assert "Traceback" not in err
    assert wait_until(lambda: all(has_ended(process) for process in processes))


def test_processes_of_joblib_end_with_a_command_that_is_killed(start):
    sweep = start("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "train.epochs=9999,20000")
    assert wait_until(lambda: len(list(Path("out").glob("targets/*/.lock"))) == 2)
    processes = psutil.Process(sweep.pid).children(recursive=True)
    sweep.kill()
    assert wait_until(lambda: all(has_ended(process) for process in processes))
    assert len(list(Path("out").glob("targets/*/checkpoint.safetensors"))) == 2  # saved before


def test_a_killed_process_of_joblib_costs_its_own_jobs_alone(start):
    words = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "train.epochs=1,20000")
    sweep = start(*words)
    assert wait_until((FOLDER / "job-0.json").exists)
    assert wait_until(lambda: training_processes(sweep))
    # Not the other one: joblib waits forever for a result in the midst of which a process died.
    for process in training_processes(sweep):
        process.kill()
    code, out, err = finish(sweep)
    assert code == 1, err
    assert "a process of the sweep was killed" in err
    assert "train.epochs=20000" in err
    assert "he_normal" in out
    assert "Traceback" not in err
