"""The cluster that the tests of this folder run on."""

import subprocess

import pytest
from slurm_cluster import SlurmCluster

pytestmark = pytest.mark.slurm


def test_a_start_that_fails_leaves_no_process(tmp_path, monkeypatch):
    cluster = SlurmCluster(tmp_path / "cluster")
    monkeypatch.setattr(cluster, "_start_database", lambda: cluster._start("mariadbd", "false"))
    monkeypatch.setattr(cluster, "call", lambda *words, **options: "")
    with pytest.raises(RuntimeError, match="mariadbd ended"), cluster:
        raise AssertionError("the cluster cannot have started")
    alive = subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, text=True).stdout
    assert alive == ""
