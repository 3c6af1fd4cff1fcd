#!/usr/bin/env python3
"""Write an archive of the results in a folder, to be imported elsewhere.

    python scripts/gpu/pack_results.py OUTPUTS ARCHIVE.zip

The archive stays below 16 MiB and has what no earlier archive of this folder had; what there is no
room for is named, and goes into the next one. An archive that is there stays: the next free name is
taken, as ARCHIVE-2.zip. `bnrecon study NAME --import ARCHIVE.zip` takes it in; its format is that
of `bnrecon.reproduction.archive`.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from bnrecon.reproduction.archive import FINISHED, KINDS, MANIFEST, kind_of, transpose
from bnrecon.runtime import files
from bnrecon.runtime.errors import shorten
from bnrecon.runtime.provenance import commit

LIMIT = 16 * 2**20 - 2**16  # bytes of an archive: below 16 MiB
STATE = ("seeds", "interrupted trainings", "solved layers")  # of use until there is a result
SENT = ".sent.json"


def main(arguments: list[str] | None = None) -> None:
    """Pack, and say what is in the archive and what is not."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("outputs", type=Path)
    parser.add_argument("archive", type=Path)
    args = parser.parse_args(arguments)
    if not args.outputs.is_dir():
        parser.error(f"{args.outputs}: no such folder")
    outputs, wanted = args.outputs, args.archive
    archive, number = wanted, 1
    while archive.exists():
        number += 1
        archive = wanted.with_name(f"{wanted.stem}-{number}{wanted.suffix}")
    packed, left_out = export_results(outputs, archive, sent=outputs / SENT)
    if not packed and not left_out:
        archive.unlink()
        print("nothing that no archive had before")
        return
    print(f"{archive}: {len(packed)} files, {archive.stat().st_size / 1e6:.1f} MB")
    if left_out:
        named = f"{len(left_out)} files ({shorten(left_out)})"
        print(f"no room in this archive, left for the next one: {named}")


def export_results(
    outputs: Path, archive: Path, limit: int | None = LIMIT, sent: Path | None = None
) -> tuple[list[str], list[str]]:
    """Write results that no archive had before; the names of these, and of what had no room.

    Args:
        outputs: the folder of runs, targets and studies.
        archive: the file that is written, in whole or not at all.
        limit: the bytes that it may have; ``None`` for any number.
        sent: the file that remembers what earlier archives had; what is left out of this one is
            not in it, and so goes to the next.
    """
    before = (sent and files.read_if_valid(sent, lambda path: json.loads(path.read_bytes()))) or {}
    packed: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    left_out: list[str] = []
    size = 4096
    for group in _groups(outputs):
        read = {name: (outputs / name).read_bytes() for name in group}
        hashed = {name: hashlib.sha256(content).hexdigest() for name, content in read.items()}
        if hashed.items() <= before.items():
            continue
        stored = {
            name: transpose(content, 4) if name.endswith(".safetensors") else content
            for name, content in read.items()
        }
        # Compressed, with the entries in the lists
        needed = sum(len(zlib.compress(x)) + 3 * len(name) + 300 for name, x in stored.items())
        if limit is not None and size + needed > limit:
            left_out += group
            continue
        size += needed
        packed |= stored
        digests |= hashed
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(MANIFEST, json.dumps({"commit": commit(), "files": digests}, indent=1))
        for name, content in packed.items():
            file.writestr(name, content)
    files.write_bytes(archive, buffer.getvalue())
    if sent is not None:
        files.write_text(sent, json.dumps(before | digests, indent=1))
    return list(packed), left_out


def _groups(outputs: Path) -> Iterator[list[str]]:
    """The results below a folder, those together that are of use together, targets first."""
    groups: dict[str, dict[Path, list[str]]] = {kind: {} for kind in KINDS}
    for path in sorted(outputs.glob("**/*")):
        name = path.relative_to(outputs)
        kind = kind_of(name.as_posix())
        if kind is None or not path.is_file() or path.is_symlink():
            continue
        folder = outputs / name.parts[0] / name.parts[1]
        done = (folder / "target.json").exists() or (folder / "result.json").exists()
        if kind in (STATE if done else FINISHED):
            continue
        # A target's files are of use together, a task is of use alone.
        key = path.parent if kind in (*FINISHED, "benchmarks") else path
        groups[kind].setdefault(key, []).append(name.as_posix())
    for group in groups.values():
        yield from group.values()


if __name__ == "__main__":
    main()
