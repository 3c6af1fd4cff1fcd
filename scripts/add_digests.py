#!/usr/bin/env python3
"""Add to an experiment's table of an earlier version the digests by which damage is known; numbers stay as they are written.

python scripts/add_digests.py FILE.csv [...]
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pandas as pd

from bnrecon.reproduction.experiments import signed
from bnrecon.runtime import files


def main(paths: list[str]) -> int:
    """Sign each file that has pieces and no digests yet."""
    for path in map(Path, paths):
        rows = pd.read_csv(
            io.StringIO(path.read_text(encoding="utf-8")), dtype=str, keep_default_na=False
        )
        if "piece" not in rows or "digest" in rows:
            print(f"{path}: nothing to do")
            continue
        files.write_text(path, signed(rows).to_csv(index=False))
        print(f"{path}: {rows['piece'].nunique()} pieces")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
