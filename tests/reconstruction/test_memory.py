"""The memory of ``reconstruct``, in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

import bnrecon
from bnrecon import FeatureSpec, SolverSpec

SETTINGS = {
    "matrix_free": (FeatureSpec("he_normal"), SolverSpec()),
    "refined": (FeatureSpec("he_normal", width="minimum"), SolverSpec()),
    "lu": (FeatureSpec("he_normal", oversampling=1.0), SolverSpec("lu")),
    "lu_lbfgs": (
        FeatureSpec("he_normal", width="minimum"),
        SolverSpec("lu_lbfgs", max_iterations=20),
    ),
}
SLACK = 2**24  # bytes that the allocator keeps


def network(width):
    return nn.Sequential(nn.Conv2d(width, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3)).eval()


def peak():
    """The most memory that this process has had, in bytes (``ru_maxrss`` counts its parent's)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def measure(name, width=24):
    """Planned and used bytes: the rise of the process's peak, once everything is loaded."""
    features, solver = SETTINGS[name]
    bnrecon.reconstruct(network(4), features, solver=solver)
    planned = bnrecon.plan_layers(network(width), features, solver=solver).memory
    before = peak()
    bnrecon.reconstruct(network(width), features, solver=solver)
    return planned, peak() - before


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", SETTINGS)
def test_reconstruct_takes_no_more_memory_than_planned(name):
    run = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True)
    planned, used = json.loads(run.stdout)
    assert planned / 3 < used < planned + SLACK


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1])))
