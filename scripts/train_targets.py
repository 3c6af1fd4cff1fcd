#!/usr/bin/env python3
"""Train the targets of a study's tables, before anything is rebuilt from them; resumable.

    python scripts/train_targets.py burkholz2024 table1 table2 scale=paper [NAME=VALUE ...]

Each network is trained once, however many rows of the tables it is for. Those of parts that are
not tables of runs are trained by `bnrecon study`.
"""

from __future__ import annotations

import sys

from bnrecon.cli import exit_codes, main
from bnrecon.reproduction import engine
from bnrecon.reproduction.request import read
from bnrecon.reproduction.shared_targets import target_key
from bnrecon.reproduction.work import RunWork
from bnrecon.studies import registry


def targets(words: list[str]) -> list[tuple[str, ...]]:
    """The overrides of a run for each target, in the order of the tables."""
    found: dict[str, tuple[str, ...]] = {}
    request = read(words[0], words[1:])
    for part in engine.plan(registry.find(words[0]), request):
        for work in part.work:
            if isinstance(work, RunWork):
                found.setdefault(target_key(work.config), work.row.overrides)
    return list(found.values())


def train(words: list[str]) -> int:
    """Train one after another; the first exit code that is no success."""
    for number, overrides in enumerate(wanted := targets(words), 1):
        print(f"target {number} of {len(wanted)}: {' '.join(overrides)}", flush=True)
        code = main.main(["train", *overrides])
        if code != exit_codes.DONE:
            return code
    return exit_codes.DONE


if __name__ == "__main__":
    if not sys.argv[1:]:
        sys.exit(__doc__)
    try:
        code = train(sys.argv[1:])
    except Exception as error:
        code = exit_codes.report(error)
    sys.exit(code)
