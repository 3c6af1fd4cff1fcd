#!/usr/bin/env python3
"""Compute the next pieces of work that want a GPU, within a few minutes; run it again to continue.

    python scripts/gpu_slice.py [NAME=VALUE ...] [--minutes 9] [--pieces NAME ...]
                                [--data FOLDER] [--outputs outputs] [--archive results.zip]
                                [--device cuda] [--scale paper]

In order: of Burkholz 2024 the targets of Tables 1 and 2, their exact cells, those of the paper's
solver, training normalizations alone, all the rest; then ResNet-18 at its full width, and the
throughput of training and of solvers (`pieces.py` names them). Each is a command of its own,
stopped by SIGTERM when the time is over, upon which it saves. Source networks are not kept.
NAME=VALUE are options of the studies' runs.

In a folder that `pack_for_gpu.py` made it needs Python, torch and torchvision, neither network nor
git. It takes in the parts that lie beside it and keeps what they are joined to in --keep, where the
package runs from; with --receive that is all. So the parts can come one by one. What was found goes
into --archive, at most 16 MiB a time; the next slice packs what is left (--minutes 0: no more than
that).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import parts
from pieces import STUDY, Piece, chosen

HERE = Path(__file__).resolve().parent
PACK = HERE / "pack.json"  # there in a folder that pack_for_gpu.py made
GRACE = 45  # seconds that a step has to save its state


@dataclass(frozen=True)
class Place:
    """Where the work is done.

    Args:
        scripts: the folder of the scripts.
        package: the folder that bnrecon is imported from; where it is installed it is ``None``.
        data: the folder of the images.
        outputs: the folder of the results.
    """

    scripts: Path
    package: Path | None
    data: Path | None
    outputs: Path

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a step."""
        paths = [str(self.package or ""), os.environ.get("PYTHONPATH", "")]
        return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


def main() -> int:
    """Take in what arrived, work until the time is over, pack what was found."""
    args = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # `run` then stops its step
    deadline = time.monotonic() + 60 * args.minutes
    try:
        about = json.loads(PACK.read_text(encoding="utf-8")) if PACK.exists() else None
        wanted = chosen(args.pieces or (about or {}).get("pieces", []))
        place = in_checkout(args) if about is None else unpack(args, about, wanted)
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        print(f"gpu_slice: {error}", file=sys.stderr)
        return 2
    if place is None:
        return 0
    try:
        return work(args, wanted, place, deadline)
    finally:
        if args.archive is not None and place.outputs.is_dir():
            line = [str(place.scripts / "pack_results.py"), str(place.outputs), args.archive]
            subprocess.run([sys.executable, *line], env=place.environment, check=False)


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("options", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--grace", type=float, default=GRACE, help="seconds to save in")
    parser.add_argument("--pieces", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--data", default=None)
    parser.add_argument("--outputs", default=None)
    parser.add_argument("--archive", default=None)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--scale", default="paper", choices=("smoke", "laptop", "paper"))
    # In a folder of the user's own: what is in it is run.
    parser.add_argument("--keep", type=Path, default=Path.home() / ".cache" / "bnrecon-gpu")
    parser.add_argument("--receive", action="store_true")
    return parser.parse_intermixed_args()


def in_checkout(args: argparse.Namespace) -> Place:
    """The scripts beside this one, bnrecon as it is installed."""
    data = None if args.data is None else Path(args.data)
    return Place(HERE, None, data, Path(args.outputs or "outputs"))


def unpack(args: argparse.Namespace, about: dict[str, Any], wanted: list[Piece]) -> Place | None:
    """Take in the parts, join what is complete; ``None`` where that is all.

    Raises:
        ValueError: a part is damaged, or one that is needed is missing.
    """
    if (python := "{}.{}".format(*sys.version_info)) != about["python"]:
        raise ValueError(f"packed for Python {about['python']}, this is {python}; pack it again")
    names = {name for piece in wanted for name in piece.images}
    if others := names - {Path(file["name"]).stem for file in about["files"]}:
        raise ValueError(f"{' and '.join(sorted(others))} was not packed; choose other pieces")
    lacking = []
    for file in about["files"]:
        left = take(file, args.keep)
        needed = Path(file["name"]).stem in {"code", "results", *names}
        if left and (needed or args.receive):
            listed = ", ".join(left[:3]) + (" ..." if len(left) > 3 else "")
            lacking.append(
                f"{file['name']}: {len(left)} of {len(file['parts'])} parts missing ({listed})"
            )
    if args.receive:
        print("; ".join(lacking) or "everything has arrived", flush=True)
        return None
    if lacking:
        raise ValueError(f"{'; '.join(lacking)}; copy them here and run this again")
    code = args.keep / "code"
    place = Place(
        code / "scripts",
        code / "site",
        Path(args.data or args.keep / "data"),
        Path(args.outputs or args.keep / "outputs"),
    )
    bring_results(args.keep, place)
    return place


def take(file: dict[str, Any], keep: Path) -> list[str]:
    """Take in a file's parts; join and unpack it when it is complete, else name those missing."""
    name = Path(file["name"])
    done = keep / f"{name}.sha256"
    if done.exists() and done.read_text(encoding="utf-8") == file["sha256"]:
        return []  # remove the folder --keep to begin anew
    parts.receive(file, HERE, keep / "parts")
    if left := parts.missing(file, keep / "parts"):
        return left
    joined = keep / ("data" if name.suffix == ".npz" else "parts") / name
    parts.join(file, keep / "parts", joined)
    if name.stem == "code":
        shutil.rmtree(keep / "code", ignore_errors=True)  # of an earlier pack
        with zipfile.ZipFile(joined) as archive:
            archive.extractall(keep / "code")
        joined.unlink()
    done.write_text(file["sha256"], encoding="utf-8")
    return []


def bring_results(keep: Path, place: Place) -> None:
    """Add the results that travelled along to those that are here."""
    results = keep / "parts" / "results.zip"
    if results.exists():
        command = ["-m", "bnrecon", "study", STUDY, "--import", str(results)]
        line = [sys.executable, *command, f"outputs={place.outputs}"]
        if subprocess.run(line, env=place.environment, check=False).returncode:
            raise ValueError("the results that were packed could not be taken in; pack them again")
        with zipfile.ZipFile(results) as archive:  # they need not travel back
            known = json.loads(archive.read("archive.json"))["files"]
        (place.outputs / ".sent.json").write_text(json.dumps(known), encoding="utf-8")
        results.unlink()


def work(args: argparse.Namespace, wanted: list[Piece], place: Place, deadline: float) -> int:
    """Do one piece after another; the worst exit code of those that ended by themselves."""
    worst = 0
    for piece in wanted:
        if piece.command[0].startswith("bench_") and args.device != "cuda" and not args.pieces:
            continue
        marker = None
        if piece.marker is not None:
            marker = place.outputs / piece.marker.format(device=args.device)
            if marker.exists():
                continue
        left = deadline - time.monotonic() - args.grace
        if left <= 0:
            print(f"the time is over before: {piece.name}; run this again to continue", flush=True)
            return worst
        print(f"\n{piece.name}: at most {left / 60:.1f} min", flush=True)
        code = run(command(piece, args, place), place, left, args.grace, marker)
        if code is None:
            print(f"the time is over during: {piece.name}; run this again to continue", flush=True)
            return worst
        if code:
            print(f"{piece.name} ended with exit code {code}; the others go on", flush=True)
            worst = max(worst, code)
    print("nothing is left to do" if worst == 0 else "some pieces failed", flush=True)
    return worst


def command(piece: Piece, args: argparse.Namespace, place: Place) -> list[str]:
    """The command line of a piece."""
    name, *words = piece.command
    if name.startswith("bench_"):
        own = ["--outputs", str(place.outputs / "solvers")] if "solvers" in name else []
        return [sys.executable, str(place.scripts / name), "--device", args.device, *own]
    start = ["-m", "bnrecon", name] if name == "study" else [str(place.scripts / name)]
    options = [
        f"scale={args.scale}",
        f"device={args.device}",
        f"outputs={place.outputs}",
        "keep_source=false",
        *([f"data.root={place.data}"] if place.data else []),
    ]
    return [sys.executable, *start, *words, *options, *args.options]


def run(
    line: list[str], place: Place, seconds: float, grace: float, marker: Path | None
) -> int | None:
    """The exit code of a step, ``None`` if it had to be stopped; a marker keeps its output."""
    process = subprocess.Popen(
        line,
        stdout=None if marker is None else subprocess.PIPE,
        text=True,
        env=place.environment,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            stop(process, grace)
    if marker is not None:
        print(output, flush=True)
        if process.returncode == 0:
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.write_text(output, encoding="utf-8")
    return process.returncode


def stop(process: subprocess.Popen[str], grace: float) -> None:
    """End a step and all that it started: SIGTERM, and SIGKILL for what does not end in time."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(0.9 * grace)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
