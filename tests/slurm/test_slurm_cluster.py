"""The cluster that the tests of this folder run on."""

import subprocess
import sys

import pytest
from processes import wait_until
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm


def submit(slurm, command, *options):
    return slurm.call("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={command}")


def test_a_job_runs_and_accounting_knows_its_end(slurm):
    job = submit(slurm, "true").strip()
    assert wait_until(lambda: slurm.states(job) == {job: "COMPLETED"})
    assert job not in slurm.queue()


def test_a_job_that_takes_more_memory_than_it_asked_for_is_ended(slurm):
    program = "x = bytearray(400 * 1024**2); import time; time.sleep(60)"
    job = submit(slurm, f"exec {sys.executable} -S -c '{program}'", "--mem=100").strip()
    # Where Slurm itself looks at the memory, its accounting has no word for it.
    end = "OUT_OF_MEMORY" if slurm.limits == "cgroup" else "FAILED"
    assert wait_until(lambda: slurm.states(job) == {job: end})


def test_a_start_that_fails_leaves_no_process(tmp_path, monkeypatch):
    cluster = SlurmCluster(tmp_path / "cluster")
    monkeypatch.setattr(cluster, "_start_database", lambda: cluster._start("mariadbd", "false"))
    monkeypatch.setattr(cluster, "call", lambda *words, **options: "")
    with pytest.raises(RuntimeError, match="mariadbd ended"), cluster:
        raise AssertionError("the cluster cannot have started")
    left = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True).stdout
    assert left == ""
