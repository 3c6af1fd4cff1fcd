#!/usr/bin/env python3
"""Write an archive of the results in a folder, to be imported elsewhere.

    python scripts/pack_results.py OUTPUTS ARCHIVE.zip [--again]

The archive stays below 16 MiB and has what no earlier archive of this folder had: what there is no
room for is named, and goes into the next one. With --again everything is packed anew, as when an
archive was lost. `bnrecon study NAME --import ARCHIVE.zip` takes it in.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bnrecon.reproduction.archive import export_results
from bnrecon.runtime.errors import shorten

SENT = ".sent.json"


def main(arguments: list[str] | None = None) -> int:
    """Pack, and say what is in the archive and what is not."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("outputs", type=Path)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--again", action="store_true")
    args = parser.parse_args(arguments)
    sent = args.outputs / SENT
    if args.again:
        sent.unlink(missing_ok=True)
    packed = export_results(args.outputs, args.archive, sent=sent)
    size = args.archive.stat().st_size / 1e6
    print(f"{args.archive}: {len(packed.files)} files, {size:.1f} MB")
    if packed.left_out:
        left = f"{len(packed.left_out)} files ({shorten(packed.left_out)})"
        print(f"no room in this archive, left for the next one: {left}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
