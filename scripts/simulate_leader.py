"""Lead many made-up tasks on a simulated cluster: what a task costs its leader, and what is lost.

    python scripts/simulate_leader.py --tasks 10000 --nodes 100

The tasks take random times, by a clock that is simulated; some fail, and some are preempted and
start again. The engine, its log, its progress file and the result files are the real ones. The
leader is killed once, and continued until no task is left. Printed are the seconds of each command
that leads, and that every task was computed once. Takes three minutes for 10,000.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from bnrecon.reproduction import engine, progress
from bnrecon.reproduction.executors.computation import compute
from bnrecon.reproduction.experiment import Task
from bnrecon.reproduction.outcome import Outcome, Started
from bnrecon.reproduction.work import TaskWork, Work
from bnrecon.runtime.errors import RunError

computed: Counter[str] = Counter()  # results by task
tried: Counter[str] = Counter()
failing: set[str] = set()  # those whose next attempt fails


def make_row(name: str) -> pd.DataFrame:
    """The row of a task, or a failure."""
    tried[name] += 1
    if name in failing:
        raise RunError("a simulated failure")
    computed[name] += 1
    return pd.DataFrame([{"name": name}])


@dataclass
class SimulatedCluster:
    """Nodes that take tasks as they come free, by a simulated clock.

    Args:
        nodes: number of nodes.
        preempted: probability that a task is stopped half-way and queued again.
        claims: the folder of the engine's locks.
        killed_after: number of outcomes after which the leader is interrupted; 0 for never.
        draw: random numbers.
    """

    nodes: int
    preempted: float
    claims: Path
    killed_after: int
    draw: random.Random
    clock: float = 0.0
    preemptions: int = 0
    name: str = "simulated nodes"
    processes: int = field(init=False)

    def __post_init__(self) -> None:
        self.processes = self.nodes

    def run(self, stages: Sequence[Sequence[Work]]) -> Generator[Started | Outcome, None, None]:
        """See ``bnrecon.reproduction.executors.Executor``."""
        outcomes = 0
        for stage in stages:
            queue, running = list(reversed(stage)), []
            while queue or running:
                while queue and len(running) < self.nodes:
                    item = queue.pop()
                    seconds = self.draw.expovariate(1 / 300)
                    stopped = self.draw.random() < self.preempted
                    end = self.clock + seconds * (0.5 if stopped else 1.0)
                    heapq.heappush(running, (end, item.key, seconds, stopped, item))
                    yield Started(item.key)
                self.clock, _, seconds, stopped, item = heapq.heappop(running)
                if stopped:
                    self.preemptions += 1
                    queue.insert(0, item)
                    continue
                found = compute(item, self.claims, Path("log"), lambda: "waiting")
                assert found is not None
                yield found
                outcomes += 1
                if outcomes == self.killed_after:
                    raise KeyboardInterrupt


def lead(folder: Path, count: int, nodes: int, failures: float, preempted: float) -> str:
    """Lead the tasks to their end; return what it took.

    Raises:
        AssertionError: a result is missing, or was computed twice.
    """
    draw = random.Random(0)
    names = [f"task {number}" for number in range(count)]
    work = [
        TaskWork("part", "smoke", Task(name, make_row, {"name": name}), folder / "study", folder)
        for name in names
    ]
    records = engine.Records(folder / "study", "smoke", "simulated")
    lines, killed_after = [], round(0.4 * count)
    while len(computed) < count:
        failing.clear()
        failing.update(name for name in names if draw.random() < failures)
        cluster = SimulatedCluster(nodes, preempted, records.claims, killed_after, draw)
        before, started = tried.total(), time.perf_counter()
        with contextlib.suppress(RunError, KeyboardInterrupt):
            engine.compute_missing(work, cluster, records)
        spent, attempts = time.perf_counter() - started, tried.total() - before
        ended = progress.read(records.progress).ended
        lines.append(
            f"{ended}: {attempts} tasks tried, {cluster.preemptions} preempted, {len(computed)} of "
            f"{count} done, {spent:.1f} s, "
            f"{cluster.clock / 3600:.1f} h simulated"
        )
        killed_after = 0
    assert all(computed[name] == 1 for name in names), "a task was computed twice"
    assert all(item.is_finished() for item in work), "a result was lost"
    return "\n".join([*lines, "nothing lost, nothing computed twice"])


def main() -> None:
    """Read the options, simulate, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--failures", type=float, default=0.05)
    parser.add_argument("--preempted", type=float, default=0.02)
    given = parser.parse_args()
    logging.getLogger("bnrecon").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        text = lead(Path(folder), given.tasks, given.nodes, given.failures, given.preempted)
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
