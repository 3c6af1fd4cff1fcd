#!/usr/bin/env python3
"""Bring a study's results from the outputs folder they were made in into another, to be committed: results, targets, tables.

    python scripts/ship_study.py FROM [--study burkholz2024] [--scale laptop] [--to outputs] [--targets NAME ...]

Of every finished run of the study's tables the result.json is taken, which is all that tables are made from, without the folders of the
machine it was made on; of the targets named (their folders' names) the weights and the log; of experiments the pieces, beside those that
shipped before. Then the tables are written anew from what was brought.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

import pandas as pd

from bnrecon.config import composition
from bnrecon.reproduction import experiments, running
from bnrecon.run.naming import run_folder
from bnrecon.runtime import files
from bnrecon.studies import registry


def main() -> int:
    """Copy, then write the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, metavar="FROM")
    parser.add_argument("--study", default="burkholz2024")
    parser.add_argument("--scale", default="laptop")
    parser.add_argument("--to", type=Path, default=Path("outputs"))
    parser.add_argument("--targets", nargs="*", default=[])
    args = parser.parse_args()
    study = registry.find(args.study)
    found = running.collect(study, args.scale, words=[f"outputs={args.source}"])
    made = args.source / "studies" / args.study
    if not list(made.glob(f"*-{args.scale}.csv")) and not any(
        cell.result for cells in found.values() for cell in cells
    ):
        print(
            f"{args.source}: no finished run and no experiment of {args.study} at scale {args.scale}",
            file=sys.stderr,
        )
        return 2
    names = []
    for cell in (cell for cells in found.values() for cell in cells if cell.result):
        name = run_folder(composition.compose(cell.words)).name
        result = {key: value for key, value in cell.result.items() if key != "digest"}
        (
            result["config"]["data"]["root"],
            result["config"]["outputs"],
            result["config"]["targets"],
        ) = None, "outputs", None
        result["target"]["folder"] = f"outputs/targets/{Path(result['target']['folder']).name}"
        files.write_json(args.to / "runs" / name / "result.json", result)
        names.append(name)
    for name in args.targets:
        for file in ("target.json", "target.safetensors"):
            (args.to / "targets" / name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(
                args.source / "targets" / name / file, args.to / "targets" / name / file
            )
    for name in study.experiments:
        file = f"{name}-{args.scale}.csv"
        if (made / file).exists():
            bring(made / file, args.to / args.study / file)
    # Commands for what is not run name no folder where it is the usual one: tables printed in a checkout are the shipped ones.
    found = running.collect(
        study, args.scale, words=[] if args.to == Path("outputs") else [f"outputs={args.to}"]
    )
    running.write_tables(study, args.scale, found, args.to / args.study)
    listed = [f"{args.to}/runs/{name}/result.json" for name in names] + [
        f"{args.to}/targets/{name}" for name in args.targets
    ]
    print(
        f"{len(names)} runs, {len(args.targets)} targets; add them with:\ngit add -f {' '.join(listed)} {args.to}/{args.study}"
    )
    return 0


def bring(source: Path, target: Path) -> None:
    """Write the sound pieces of both files to ``target``, those of ``source`` in the place of older ones of the same name."""
    mine, before = experiments.rows(source), experiments.rows(target)
    if before is not None:
        before = before[~before["piece"].isin(set(mine["piece"]))]
        mine = pd.concat([before, mine], ignore_index=True).fillna("")
    files.write_text(target, mine.to_csv(index=False))


if __name__ == "__main__":
    sys.exit(main())
