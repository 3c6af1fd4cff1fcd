#!/usr/bin/env python3
"""Compute the next pieces of work for a GPU, within a few minutes; run it again to continue.

    python scripts/gpu/gpu_slice.py [NAME=VALUE ...] [--minutes 9] [--pieces NAME ...]

Each piece (``PIECES``) is a command, which is stopped by SIGTERM when the time is over, and then
saves. NAME=VALUE are options of its runs; the defaults are scale=paper, device=cuda,
keep_source=false and outputs=outputs. In a folder made by `pack_for_gpu.py` (see README.md) data
and outputs are that folder's, and it needs only Python, torch, torchvision, NumPy and Pillow.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

SCRIPTS = Path(__file__).resolve().parents[1]
PACK = SCRIPTS.parent / "packages"  # exists in a folder made by pack_for_gpu.py
GRACE = 45  # seconds that a piece has to save its state
STUDY = "burkholz2024"


class Piece(NamedTuple):
    """A piece of work: its name in ``--pieces``, its data sets, and a script or a command."""

    name: str
    images: tuple[str, ...]
    command: tuple[str, ...]


# torchvision's ResNet-18 at its full width, trained for a few epochs, every layer to 1e-10.
RESNET18 = "target=resnet18 data=cifar10 features=sign seeds=[0] train.epochs=5"
RESNET18 += " train.warmup_epochs=1"
TABLES = (("table1", "cifar10"), ("table2", "cifar100"))
TRAIN = "gpu/train_targets.py"  # four at a time: one of width 64 leaves most of a large GPU idle
PIECES = (
    Piece("recipe", ("cifar10",), ("study", STUDY, "recipe")),  # which targets to train
    *(Piece(f"{t}-targets", (data,), (TRAIN, STUDY, t, "--jobs", "4")) for t, data in TABLES),
    *(
        Piece(f"{table}-{solver}", (data,), ("study", STUDY, table, solver))
        for solver in ("exact", "paper", "minimum")
        for table, data in TABLES
    ),
    Piece("scratch", ("cifar10",), ("study", STUDY, "scratch")),
    Piece("rest", ("cifar10", "cifar100"), ("study", STUDY)),
    Piece("resnet18", ("cifar10",), ("run", *RESNET18.split())),
    Piece("solver-benchmark", (), ("bench_solvers.py",)),
)


def chosen(names: Sequence[str]) -> list[Piece]:
    """The pieces with these names, in the order of ``PIECES``; all of them without names."""
    return [piece for piece in PIECES if not names or piece.name in names]


def read_arguments() -> argparse.Namespace:
    """The command line, with the options of the runs."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("options", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--pieces", nargs="+", default=[], choices=[piece.name for piece in PIECES])
    args = parser.parse_intermixed_args()
    if mistakes := [word for word in args.options if "=" not in word]:
        parser.error(f"{mistakes[0]}: options are NAME=VALUE")
    options = {"scale": "paper", "device": "cuda", "keep_source": "false", "outputs": "outputs"}
    if PACK.is_dir():
        if (PACK / "python").read_text(encoding="utf-8") != sys.version[:4]:
            parser.error(f"{PACK} is not of this Python {sys.version[:4]}; pack it again")
        options |= {"data.root": f"{PACK.parent}/data", "outputs": f"{PACK.parent}/outputs"}
        paths = [str(PACK), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    args.options = options | dict(word.split("=", 1) for word in args.options)
    return args


def work(args: argparse.Namespace) -> int:
    """Run the pieces in order; return the worst exit code of those that were not stopped."""
    worst, deadline = 0, time.monotonic() + 60 * args.minutes - GRACE
    options = [f"{name}={value}" for name, value in args.options.items()]
    outputs = f"{args.options['outputs']}/solvers"
    for piece in chosen(args.pieces):
        name, *words = piece.command
        if name == "bench_solvers.py":
            words += ["--device", args.options["device"], "--outputs", outputs]
        else:
            words += options
        start = [str(SCRIPTS / name)] if name.endswith(".py") else ["-m", "bnrecon", name]
        seconds = max(0.0, deadline - time.monotonic())
        print(f"\n{piece.name}: at most {seconds / 60:.1f} min", flush=True)
        code = run([sys.executable, *start, *words], seconds) if seconds else None
        if code is None:
            print(f"the time is over at: {piece.name}; run this again to continue", flush=True)
            return worst
        if code:
            print(f"{piece.name} ended with exit code {code}; the others go on", flush=True)
            worst = max(worst, code)
    print("nothing is left to do" if worst == 0 else "some pieces failed", flush=True)
    return worst


def run(line: list[str], seconds: float) -> int | None:
    """Run a piece; return its exit code, or ``None`` if it had to be stopped."""
    process = subprocess.Popen(line, start_new_session=True)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:  # end all its processes: by SIGTERM, then SIGKILL if they do not end in time
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(0.9 * GRACE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # `run` then stops its piece
    sys.exit(work(read_arguments()))
