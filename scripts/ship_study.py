#!/usr/bin/env python3
"""Copy a study's results into another folder, to be committed.

    python scripts/ship_study.py FROM [--study burkholz2024] [--scale laptop] [--to outputs]
                                 [--targets NAME ...]

Copies the result.json of every finished run of the study's tables, without the name and folders of
the machine that made it; the files of finished tasks; and, of the targets in --targets (names of
folders), the weights and the log. Then it writes the tables and figures from the copies.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from pathlib import Path

import command_line

from bnrecon.reporting.result import RunResult
from bnrecon.reproduction import engine, pages
from bnrecon.reproduction.request import StudyRequest, read
from bnrecon.reproduction.study import Study
from bnrecon.reproduction.work import RunWork, TaskWork
from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError
from bnrecon.studies import registry


def main(arguments: list[str] | None = None) -> int:
    """Copy, then write the tables."""
    options = {"study": "burkholz2024", "scale": "laptop", "to": Path("outputs"), "targets": []}
    args = command_line.parser(__doc__, "source", **options).parse_args(arguments)
    source, study, scale = Path(args.source), registry.find(args.study), f"scale={args.scale}"
    if missing := [name for name in args.targets if not (source / "targets" / name).is_dir()]:
        raise UserError(f"--targets {missing[0]}: not in {source / 'targets'}")
    brought = bring(study, read(args.study, [scale, f"outputs={source}"]), args.to)
    if not brought:
        print(f"{source}: nothing of {args.study} is finished at {scale}", file=sys.stderr)
        return 2
    for name in args.targets:
        for path in (Path("targets", name, f"target.{kind}") for kind in ("json", "safetensors")):
            brought.append(args.to / path)
            files.write_bytes(brought[-1], (source / path).read_bytes())
    # Do not name the default folder: tables in a checkout are the shipped ones.
    options = [] if args.to == Path("outputs") else [f"outputs={args.to}"]
    written = pages.write(study, read(args.study, [scale, *options]), args.to / args.study)
    if written.refused is not None:
        raise written.refused
    folders = {str(args.to / args.study), *(str(path.parent) for path in brought)}
    print(f"{len(brought)} results; add them with:\ngit add -f {' '.join(sorted(folders))}")
    return 0


def bring(study: Study, made: StudyRequest, to: Path) -> list[Path]:
    """Copy the finished runs and tasks; return the new files."""
    brought = []
    for work in (work for planned in engine.plan(study, made) for work in planned.work):
        result = work.result()
        if isinstance(work, RunWork) and isinstance(result, RunResult):
            brought.append(to / "runs" / work.folder.name / "result.json")
            without_machine(result).write(brought[-1])
        elif isinstance(work, TaskWork) and work.path.exists() and result is not None:
            brought.append(to / study.name / work.path.relative_to(made.folder))
            files.write_bytes(brought[-1], work.path.read_bytes())
    return brought


def without_machine(result: RunResult) -> RunResult:
    """The result as if made in the default folders, on a machine without a name."""
    usual = {"outputs": "outputs", "targets": None, "tracker_folder": None}
    config = {name: usual.get(name, value) for name, value in result.config.items()}
    config["data"] = dict(config["data"]) | {"root": None}
    if weights := config["target"].get("weights"):
        config["target"] = dict(config["target"]) | {"weights": Path(weights).name}
    folder = f"outputs/targets/{Path(result.target.folder).name}"
    target = dataclasses.replace(result.target, folder=folder)
    command = None if result.command is None else without_folders(result.command)
    return dataclasses.replace(result, config=config, target=target, host=None, command=command)


def without_folders(command: str) -> str:
    """The command with ``FOLDER`` for every value with a path's separator, or a home."""
    words = []
    for word in shlex.split(command):
        name, equals, value = word.rpartition("=")
        words.append(f"{name}{equals}FOLDER" if re.search(r"[/\\~]", value) else word)
    return shlex.join(words)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except UserError as error:
        sys.exit(str(error))
