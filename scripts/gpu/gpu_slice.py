#!/usr/bin/env python3
"""Compute the next pieces of work that want a GPU, within a few minutes; run it again to continue.

    python gpu_slice.py [NAME=VALUE ...] [--minutes 9] [--pieces NAME ...] [--data FOLDER]
                        [--outputs outputs] [--archive results.zip] [--device cuda] [--scale paper]

`pieces.py` lists the pieces, each a command of its own, which is stopped by SIGTERM when the time
is over, upon which it saves. NAME=VALUE are options of the runs; source networks are not kept. In a
folder that `pack_for_gpu.py` made (see README.md), parts are taken in (--receive: no more)
and kept in --keep; there it needs nothing but Python, torch and torchvision.
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
from pathlib import Path
from typing import Any

import parts
from pieces import STUDY, Piece, chosen

HERE = Path(__file__).resolve().parent
PACK = HERE / "pack.json"  # there in a folder that pack_for_gpu.py made
GRACE = 45  # seconds that a step has to save its state


def main() -> int:
    """Take in what arrived, work until the time is over, pack what was computed."""
    args = read_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # `run` then stops its step
    args.deadline = time.monotonic() + 60 * args.minutes
    try:
        pack = json.loads(PACK.read_text(encoding="utf-8")) if PACK.exists() else {}
        wanted = chosen(args.pieces or pack.get("pieces", []))
        if pack:
            unpack(args, pack, {name for piece in wanted for name in piece.images})
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        print(f"gpu_slice: {error}", file=sys.stderr)
        return 2
    if args.receive:
        return 0
    try:
        return work(args, wanted)
    finally:
        if args.archive is not None and args.outputs.is_dir():
            line = [args.scripts / "gpu/pack_results.py", args.outputs, args.archive]
            subprocess.run([sys.executable, *map(str, line)], env=args.environment, check=False)


def read_arguments() -> argparse.Namespace:
    """The command line, and where a checkout has what is run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("options", nargs="*", metavar="NAME=VALUE")
    parser.add_argument("--minutes", type=float, default=9)
    parser.add_argument("--grace", type=float, default=GRACE, help="seconds to save in")
    parser.add_argument("--pieces", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--outputs", type=Path)
    parser.add_argument("--archive")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--scale", default="paper", choices=("smoke", "laptop", "paper"))
    # In a folder of the user's own: what is in it is run.
    parser.add_argument("--keep", type=Path, default=Path.home() / ".cache" / "bnrecon-gpu")
    parser.add_argument("--receive", action="store_true")
    args = parser.parse_intermixed_args()
    base = args.keep if PACK.exists() else Path()
    args.outputs = args.outputs or base / "outputs"
    args.scripts = base / "code/scripts" if PACK.exists() else HERE.parent
    args.environment = dict(os.environ)
    if PACK.exists():
        args.data = args.data or args.keep / "data"
        paths = [str(args.keep / "code/site"), os.environ.get("PYTHONPATH", "")]
        args.environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return args


def unpack(args: argparse.Namespace, pack: dict[str, Any], images: set[str]) -> None:
    """Take in the parts, and join and unpack what is complete.

    Raises:
        ValueError: a part is damaged, or one that is needed is missing.
    """
    if (python := "{}.{}".format(*sys.version_info)) != pack["python"]:
        raise ValueError(f"packed for Python {pack['python']}, this is {python}; pack it again")
    if others := images - {Path(file["name"]).stem for file in pack["files"]}:
        raise ValueError(f"{' and '.join(sorted(others))} was not packed; choose other pieces")
    lacking = []
    for file in pack["files"]:
        missing = take(file, args.keep)
        if missing and (args.receive or Path(file["name"]).stem in {"code", "results", *images}):
            listed = ", ".join(missing[:3]) + (" ..." if len(missing) > 3 else "")
            count = f"{len(missing)} of {len(file['parts'])} parts missing"
            lacking.append(f"{file['name']}: {count} ({listed})")
    if args.receive:
        print("; ".join(lacking) or "everything has arrived", flush=True)
    elif lacking:
        raise ValueError(f"{'; '.join(lacking)}; copy them here and run this again")
    elif (results := args.keep / "parts" / "results.zip").exists():
        import_results(args, results)


def take(file: dict[str, Any], keep: Path) -> list[str]:
    """Take in a file's parts; join and unpack it when it is complete, else name those missing."""
    name = Path(file["name"])
    done = keep / f"{name}.sha256"
    if done.exists() and done.read_text(encoding="utf-8") == file["sha256"]:
        return []  # remove the folder --keep to begin anew
    if missing := parts.receive(file, HERE, keep / "parts"):
        return missing
    joined = keep / ("data" if name.suffix == ".npz" else "parts") / name
    parts.join(file, keep / "parts", joined)
    if name.stem == "code":
        shutil.rmtree(keep / "code", ignore_errors=True)  # of an earlier pack
        with zipfile.ZipFile(joined) as archive:
            archive.extractall(keep / "code")
        joined.unlink()
    done.write_text(file["sha256"], encoding="utf-8")
    return []


def import_results(args: argparse.Namespace, results: Path) -> None:
    """Add the results that travelled along to those that are here; they need not travel back."""
    line = [sys.executable, "-m", "bnrecon", "study", STUDY, "--import", str(results)]
    line.append(f"outputs={args.outputs}")
    if subprocess.run(line, env=args.environment, check=False).returncode:
        raise ValueError("the results that were packed could not be taken in; pack them again")
    with zipfile.ZipFile(results) as archive:
        sent = json.dumps(json.loads(archive.read("archive.json"))["files"])
    (args.outputs / ".sent.json").write_text(sent, encoding="utf-8")
    results.unlink()


def work(args: argparse.Namespace, wanted: list[Piece]) -> int:
    """Do one piece after another; the worst exit code of those that ended by themselves."""
    worst = 0
    for piece in wanted:
        if piece.command[0].startswith("bench_") and args.device != "cuda" and not args.pieces:
            continue
        marker = None
        if piece.marker is not None:
            marker = args.outputs / piece.marker.format(device=args.device)
            if marker.exists():
                continue
        seconds = args.deadline - time.monotonic() - args.grace
        if seconds <= 0:
            print(f"the time is over before: {piece.name}; run this again to continue", flush=True)
            return worst
        print(f"\n{piece.name}: at most {seconds / 60:.1f} min", flush=True)
        code = run(command(piece, args), args, seconds, marker)
        if code is None:
            print(f"the time is over during: {piece.name}; run this again to continue", flush=True)
            return worst
        if code:
            print(f"{piece.name} ended with exit code {code}; the others go on", flush=True)
            worst = max(worst, code)
    print("nothing is left to do" if worst == 0 else "some pieces failed", flush=True)
    return worst


def command(piece: Piece, args: argparse.Namespace) -> list[str]:
    """The command line of a piece."""
    name, *words = piece.command
    if name.startswith("bench_"):
        outputs = ["--outputs", str(args.outputs / "solvers")] if "solvers" in name else []
        return [sys.executable, str(args.scripts / name), "--device", args.device, *outputs]
    start = ["-m", "bnrecon", name] if name == "study" else [str(args.scripts / name)]
    options = [f"{option}={getattr(args, option)}" for option in ("scale", "device", "outputs")]
    options += ["keep_source=false", *([f"data.root={args.data}"] if args.data else [])]
    return [sys.executable, *start, *words, *options, *args.options]


def run(
    line: list[str], args: argparse.Namespace, seconds: float, marker: Path | None
) -> int | None:
    """The exit code of a step, ``None`` if it had to be stopped; a marker keeps its output."""
    stdout = None if marker is None else subprocess.PIPE
    process = subprocess.Popen(
        line, stdout=stdout, text=True, env=args.environment, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:  # end all that it started: SIGTERM, and SIGKILL for what does not end in time
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
                try:
                    process.wait(0.9 * args.grace)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
    if marker is not None:
        print(output, flush=True)
        if process.returncode == 0:
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.write_text(output, encoding="utf-8")
    return process.returncode


if __name__ == "__main__":
    sys.exit(main())
