"""Many tasks on a simulated cluster: some fail, some are preempted, and the leader is killed."""

import subprocess
import sys
from pathlib import Path

from processes import ENVIRONMENT

SCRIPT = Path(__file__).parents[2] / "scripts" / "simulate_leader.py"


def test_nothing_is_lost_and_nothing_is_computed_twice():
    options = ["--tasks", "200", "--nodes", "20", "--failures", "0.1", "--preempted", "0.1"]
    done = subprocess.run(
        [sys.executable, SCRIPT, *options],
        capture_output=True,
        text=True,
        timeout=240,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    first, second, *_, last = done.stdout.splitlines()
    assert first.startswith("interrupted: 80 tasks tried")  # the leader was killed
    assert second.startswith("failed: ")  # and then met tasks that fail
    assert last == "nothing lost, nothing computed twice"
