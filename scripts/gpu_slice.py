#!/usr/bin/env python3
"""Compute the next tasks that want a GPU, within a few minutes; run it again to continue.

    python scripts/gpu_slice.py [--minutes 9] [--data FOLDER] [--outputs outputs] [--device cuda]
                                [--scale paper]

In order: throughput of training and of solvers; of Burkholz 2024 the targets and the exact column
of Tables 1 and 2, Table 1 by the paper's solver, training normalizations alone, all the rest. Each
step is a command of its own, stopped by SIGTERM when the time is over, upon which it saves. Source
networks are not kept, so that what is left behind is small.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

GRACE = 45  # seconds that a step has to save its state
STUDY = ("exact", "table1 paper", "scratch", "")  # parts of Burkholz 2024


@dataclass(frozen=True)
class Step:
    """A command; ``marker`` keeps the output of one that remembers nothing itself."""

    name: str
    command: list[str]
    marker: Path | None = None


def steps(args: argparse.Namespace) -> list[Step]:
    """What there is to do, in order."""
    here, device = Path(__file__).parent, ["--device", args.device]
    benchmarks = [
        Step(
            "throughput of training",
            [sys.executable, str(here / "bench_training.py"), *device],
            Path(args.outputs) / "training" / f"{args.device}.txt",
        ),
        Step("solvers", [sys.executable, str(here / "bench_solvers.py"), *device]),
    ]
    options = [
        f"scale={args.scale}",
        f"device={args.device}",
        f"outputs={args.outputs}",
        "keep_source=false",
        *([f"data.root={args.data}"] if args.data else []),
    ]
    study = [sys.executable, "-m", "bnrecon", "study", "burkholz2024"]
    parts = [Step(f"study {part}".strip(), [*study, *part.split(), *options]) for part in STUDY]
    return [*benchmarks, *parts] if args.device == "cuda" else parts


def main() -> int:
    """Run steps until the time is over; the worst exit code of those that ended by themselves."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--data", default=None)
    parser.add_argument("--outputs", default="outputs")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--scale", default="paper", choices=("smoke", "laptop", "paper"))
    args = parser.parse_args()
    worst = 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # `run` then stops its step
    deadline = time.monotonic() + 60 * args.minutes
    for step in steps(args):
        if step.marker is not None and step.marker.exists():
            continue
        left = deadline - time.monotonic() - GRACE
        if left <= 0:
            print(f"the time is over before: {step.name}; run this again to continue", flush=True)
            return 0
        print(f"\n{step.name}: at most {left / 60:.1f} min", flush=True)
        code = run(step, left)
        if code is None:
            print(f"the time is over during: {step.name}; run this again to continue", flush=True)
            return 0
        if code:
            print(f"{step.name} ended with exit code {code}; the others go on", flush=True)
            worst = max(worst, code)
    print("nothing is left to do" if worst == 0 else "some steps failed")
    return worst


def run(step: Step, seconds: float) -> int | None:
    """The exit code of a step, ``None`` if it had to be stopped."""
    process = subprocess.Popen(
        step.command,
        stdout=None if step.marker is None else subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(GRACE - 5)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if step.marker is not None:
        print(output)
        if process.returncode == 0:
            step.marker.parent.mkdir(parents=True, exist_ok=True)
            step.marker.write_text(output)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
