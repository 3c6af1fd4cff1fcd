"""Sweeps on a real Slurm: jobs that are cancelled, killed or requeued lose nothing."""

import os
import signal
from pathlib import Path

import pytest
from processes import finish, wait_until
from submitted_sweep import FOLDER, SWEEP, jobs_of, log_of, started_sweeps

from bnrecon.runtime import files

SLURM = ("hydra/launcher=submitit_slurm", "hydra.launcher.mem_gb=1")
LONG = 300  # seconds that a wait may take: a job waits for others and loads its libraries

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


@pytest.fixture
def start(slurm, tmp_path, monkeypatch):
    """Start a sweep; its process and its jobs end with the test."""
    monkeypatch.chdir(tmp_path)
    with started_sweeps(*SLURM, **slurm.environment) as run:
        yield run
        slurm.call("scancel", "--name=bnrecon-one", check=False)


def test_cancelled_and_killed_jobs_cost_the_table_nothing(slurm, start):
    Path("fine.py").write_text("")
    Path("greedy.py").write_text("held = b'x' * (3 * 2**30)\n")
    Path("idle.py").write_text("import time\nprint('idle', flush=True)\ntime.sleep(10000)\n")
    sweep = start("imports=[fine],[greedy],[idle]")
    jobs = jobs_of(sweep)
    assert len(jobs) == 3
    assert "scancel" in sweep.stderr.readline()
    assert wait_until(lambda: "idle\n" in log_of(jobs[2]), LONG)
    slurm.call("scancel", jobs[2])
    code, out, err = finish(sweep, LONG)
    greedy, cancelled = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert f"imports=[greedy] (job {jobs[1]}): it needed more memory" in greedy
    assert f"imports=[idle] (job {jobs[2]}): it was cancelled" in cancelled
    assert code == 130, err
    assert "he_normal" in out
    assert (FOLDER / "table.md").read_text(encoding="utf-8") in out
    assert "defect" not in err
    assert "Traceback" not in err


def test_a_requeued_job_has_the_uninterrupted_numbers(slurm, start, command):
    """SIGUSR2 is what Slurm sends before the time limit."""
    words = ("train.epochs=300",)
    sweep = start(*words)
    (job,) = jobs_of(sweep)
    for sign in ("epoch 2/", "epoch 60/"):
        assert wait_until(lambda s=sign: s in log_of(job), LONG), log_of(job)
        requeued = log_of(job).count("Requeued job")
        slurm.call("scancel", "--signal=USR2", job)
        assert wait_until(lambda n=requeued: log_of(job).count("Requeued job") > n, LONG)
        assert wait_until(lambda: slurm.queue().get(job) == "PENDING", LONG)
        slurm.call("scontrol", "update", f"JobId={job}", "StartTime=now")  # not after two minutes
    code, _, err = finish(sweep, LONG)
    assert code == 0, err + log_of(job)
    assert "SIGUSR2 was received; training is saved at step" in log_of(job)
    assert "defect" not in log_of(job) + err
    found = [path.read_bytes() for path in Path("out/targets").rglob("target.safetensors")]
    code, _, err = command("run", *SWEEP[1:3], "outputs=whole", *words)
    assert code == 0, err
    assert found == [p.read_bytes() for p in Path("whole/targets").rglob("target.safetensors")]


def test_ctrl_c_names_the_jobs_and_the_same_command_waits_for_them(slurm, start):
    words = ("features=id_cond,ortho_cond", "train.epochs=400")
    sweep = start(*words)
    jobs = jobs_of(sweep)
    assert wait_until(lambda: slurm.queue().get(jobs[0]) == "RUNNING", LONG)
    os.killpg(sweep.pid, signal.SIGINT)
    code, _, err = finish(sweep)
    assert code == 130
    number = jobs[0].partition("_")[0]
    assert f"submitted jobs go on: {' '.join(jobs)}; to cancel them: scancel {number}" in err
    again = start(*words)
    assert "an earlier command submitted these jobs" in again.stderr.readline()
    assert jobs_of(again) == jobs
    code, out, err = finish(again, LONG)
    assert code == 0, err
    assert "id_cond" in out
    assert "ortho_cond" in out


def test_what_slurm_refuses_is_one_line(start):
    Path("own").mkdir()
    Path("own/slurm.yaml").write_text("partition: nowhere\ntime: 5m\n")
    code, out, err = finish(start("--config-dir=own"), LONG)
    assert code == 1
    assert out == ""
    assert err.startswith("bnrecon: Slurm refused the jobs: ")
    assert "invalid partition specified: nowhere" in err
    assert len(err.splitlines()) == 1
    code, _, err = finish(start("--config-dir=own", "hydra.launcher.partition=main"), LONG)
    assert code == 0, err
    script = next((FOLDER / "jobs").glob("*_submission.sh")).read_text(encoding="utf-8")
    assert "--time=5\n" in script
    assert files.read_json(FOLDER / "submitted.json")["jobs"].keys() == {"0"}
