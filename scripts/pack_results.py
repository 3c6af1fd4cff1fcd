#!/usr/bin/env python3
"""Write an archive of the results in a folder, to be imported elsewhere.

    python scripts/pack_results.py OUTPUTS ARCHIVE.zip [--again]

The archive stays below 16 MiB and has what no earlier archive of this folder had: what there is no
room for is named, and goes into the next one. An archive that is there stays: the next free name is
taken, as ARCHIVE-2.zip. With --again everything is packed anew, as when an archive was lost.
`bnrecon study NAME --import ARCHIVE.zip` takes it in.
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
    if not args.outputs.is_dir():
        print(f"pack_results: {args.outputs}: no such folder", file=sys.stderr)
        return 2
    sent, archive = args.outputs / SENT, free_name(args.archive)
    if args.again:
        sent.unlink(missing_ok=True)
    packed = export_results(args.outputs, archive, sent=sent)
    if not packed.files and not packed.left_out:
        archive.unlink()
        print("nothing that no archive had before; --again packs everything anew")
        return 0
    print(f"{archive}: {len(packed.files)} files, {archive.stat().st_size / 1e6:.1f} MB")
    if packed.left_out:
        left = f"{len(packed.left_out)} files ({shorten(packed.left_out)})"
        print(f"no room in this archive, left for the next one: {left}")
    return 0


def free_name(path: Path) -> Path:
    """The path, or with -2, -3, ... the first one that is free."""
    found, number = path, 1
    while found.exists():
        number += 1
        found = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return found


if __name__ == "__main__":
    sys.exit(main())
