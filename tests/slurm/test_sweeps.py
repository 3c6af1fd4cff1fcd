"""Sweeps on a real Slurm: cancelled or detached jobs lose nothing."""

import os
import signal
from pathlib import Path

import pytest
from processes import finish, start, wait_until

from bnrecon.jobs import record

FOLDER = Path("out/sweeps/one")
SWEEP = ("-m", "scale=smoke", "target.groups=[1]", "outputs=out", f"hydra.sweep.dir={FOLDER}")
SLURM = ("cluster=slurm", "slurm.mem=1500M", "minutes_per_job=0")
LONG = 300  # seconds to wait: a job queues and loads its libraries

pytestmark = pytest.mark.slurm
pytest.importorskip("submitit")


@pytest.fixture(autouse=True)
def _folder(slurm, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_cancelled_job_and_failing_run_do_not_affect_the_table(slurm):
    words = ("features=id_cond,he_normal", "solver=closed_form", "train.epochs=1,20000")
    sweep = start(*SWEEP, *SLURM, *words)
    assert wait_until(lambda: list(Path("out/targets").glob("*/target.json")), LONG)
    assert wait_until(lambda: list(slurm.queue().values()).count("RUNNING") == 1, LONG)
    [submission] = record.submissions(FOLDER)
    for job, keys in submission.jobs.items():
        if any(key.startswith("target-") for key in keys) and slurm.queue().get(job) == "RUNNING":
            slurm.call("scancel", job)
    code, out, err = finish(sweep, LONG)
    assert code == 2, err
    failed = [line for line in err.splitlines() if line.startswith("warning: failed")]
    assert len(failed) == 4  # one of them the target
    assert sum("not tried: " in line for line in failed) == 2
    assert sum("(exit code 2): features=he_normal train.epochs=1: " in line for line in failed) == 1
    assert "id_cond" in out
    assert "Traceback" not in err


def test_ctrl_c_names_the_jobs_and_the_same_command_waits_for_them(slurm):
    words = (*SWEEP, *SLURM, "features=id_cond,ortho_cond", "train.epochs=400")
    sweep = start(*words)
    assert wait_until(lambda: "RUNNING" in slurm.queue().values(), LONG)
    os.kill(sweep.pid, signal.SIGINT)
    code, _, err = finish(sweep)
    assert code == 130
    [submission] = record.submissions(FOLDER)
    assert f"3 jobs (cluster=slurm): {', '.join(submission.numbers)}" in err
    assert "bnrecon cancel one outputs=out stops them" in err
    code, out, err = finish(start(*words), LONG)
    assert code == 0, err
    assert "jobs of an earlier command compute" in err
    assert "id_cond" in out
    assert "ortho_cond" in out


def test_refusal_by_slurm_is_one_line():
    Path("own").mkdir()
    Path("own/slurm.yaml").write_text("partition: nowhere\ntime: 5m\n")
    words = (*SWEEP, *SLURM, "train.epochs=1", "--config-dir=own")
    code, out, err = finish(start(*words), LONG)
    assert code == 2
    assert out == ""
    assert "bnrecon: Slurm refused the jobs: invalid partition specified: nowhere" in err
    code, _, err = finish(start(*words, "slurm.partition=main"), LONG)
    assert code == 0, err
    script = next(FOLDER.glob("jobs/*/*_submission.sh")).read_text(encoding="utf-8")
    assert "--time=5\n" in script
