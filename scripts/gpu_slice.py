#!/usr/bin/env python3
"""The next unfinished pieces of what wants a GPU, within a few minutes; run again, it goes on where it stopped.

    python scripts/gpu_slice.py [--minutes 9] [--data FOLDER] [--outputs outputs] [--device cuda] [--scale paper]

Pieces, in order: throughput of training and solvers, the eight targets of Burkholz 2024 at the paper's scale with the exact column of Tables
1 and 2, Table 1 by the paper's solver, relu first, training normalizations alone, the rest of the study. The benchmark of the solvers writes
to outputs/solvers. Each is a command of its own, told
to stop (SIGTERM, upon which it saves) when the time is over. What is left behind is small: source networks are not kept.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

GRACE = 45  # seconds that a piece has to save what it is at


def pieces(args: argparse.Namespace) -> list[tuple[str, list[str], Path | None]]:
    """Name, command, and the file whose presence says that a piece without memory of its own is done."""
    bnrecon = [
        sys.executable,
        "-c",
        "import sys; from bnrecon.cli.main import main; sys.exit(main())",
    ]
    common = [
        f"scale={args.scale}",
        f"device={args.device}",
        f"outputs={args.outputs}",
        "keep_source=false",
    ]
    common += [f"data.root={args.data}"] if args.data else []
    here = Path(__file__).parent
    training = Path(args.outputs) / "training" / f"{args.device}.txt"
    found = [
        (
            "throughput of training",
            [sys.executable, str(here / "bench_training.py"), "--device", args.device],
            training,
        ),
        (
            "solvers",
            [sys.executable, str(here / "bench_solvers.py"), "--device", args.device],
            None,
        ),
    ]
    for parts in ("exact", "table1 paper", "scratch", ""):
        found.append(
            (
                f"study {parts}".strip(),
                [*bnrecon, "study", "burkholz2024", *parts.split(), *common],
                None,
            )
        )
    return found if args.device == "cuda" else found[2:]


def main() -> int:
    """Run pieces until the time is over; exit with the worst code of those that ended by themselves."""
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
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # by way of `run`, which takes its piece with it
    deadline = time.monotonic() + 60 * args.minutes
    for name, command, marker in pieces(args):
        if marker is not None and marker.exists():
            continue
        left = deadline - time.monotonic() - GRACE
        if left <= 0:
            print(f"the time is over before: {name}; run it again to go on", flush=True)
            return 0
        print(f"\n{name}: at most {left / 60:.1f} min", flush=True)
        code = run(command, left, marker)
        if code is None:
            print(
                f"the time is over during: {name}; what is done is saved, run it again to go on",
                flush=True,
            )
            return 0
        if code:
            print(f"{name} ended with exit code {code}; the others go on", flush=True)
            worst = max(worst, code)
    print("nothing is left to do" if worst == 0 else "some pieces failed")
    return worst


def run(command: list[str], seconds: float, marker: Path | None) -> int | None:
    """Exit code of a command, ``None`` if it had to be stopped; what it prints goes to ``marker`` too once it is done."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE if marker else None, text=True, start_new_session=True
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
    if marker is not None:
        print(output)
        if process.returncode == 0:
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.write_text(output)
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
