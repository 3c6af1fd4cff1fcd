"""One real Slurm for all tests in this folder; see slurm_cluster.py."""

import pytest
from slurm_cluster import SlurmCluster, missing


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """A running cluster, visible to the commands of this process and its children."""
    if reason := missing():
        pytest.skip(f"no Slurm: {reason}")
    folder = tmp_path_factory.mktemp("slurm")
    with SlurmCluster(folder) as cluster, pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        yield cluster
