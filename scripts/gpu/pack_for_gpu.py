#!/usr/bin/env python3
"""Prepare what a GPU machine without network and git needs, in parts to be copied one by one.

    python scripts/gpu/pack_for_gpu.py --out FOLDER [--data FOLDER] [--pieces NAME ...]
        [--results outputs] [--there NAME ...] [--part-mb 56]

See README.md. The folder holds `gpu_slice.py`, which runs there, and the parts of `code.zip`
(bnrecon with its commit, and the packages that it needs as they are installed here, without torch,
torchvision and those in --there), of the images that the pieces need, compressed without loss, and,
with --results, of `results.tar.gz`: targets and results so far, so that nothing is computed twice.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import shutil
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from gpu_slice import PIECES, chosen, digest, pack_results
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

from bnrecon.data import DataSpec, InMemoryImages, load
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.provenance import RECORDED, commit

SCRIPTS = Path(__file__).resolve().parent.parent
ROOT = SCRIPTS.parent
THERE = ("torch", "torchvision", "numpy", "pillow", "pytest")  # pytest: nobody tests there
SKIPPED = re.compile(r"(^|/)(__pycache__|tests)/|\.pyc$|^\.\.")


def main(arguments: list[str] | None = None) -> int:
    """Pack, and list the parts."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--there", nargs="*", default=[])
    parser.add_argument("--part-mb", type=float, default=56.0)
    names = [piece.name for piece in PIECES]
    parser.add_argument("--pieces", nargs="+", default=[], choices=names)
    args = parser.parse_args(arguments)
    try:
        pieces = chosen(args.pieces)
        args.out.mkdir(parents=True, exist_ok=True)
        for old in args.out.glob("*.[0-9][0-9][0-9]"):
            old.unlink()
        with tempfile.TemporaryDirectory() as folder:
            made = [write_code(Path(folder) / "code.zip", args.there)]
            images = sorted({name for piece in pieces for name in piece.images})
            made += [write_images(name, args.data, Path(folder)) for name in images]
            if args.results is not None:
                made.append(Path(folder) / "results.tar.gz")
                pack_results(args.results, made[-1])
            files = [cut(file, args.out, int(args.part_mb * 2**20)) for file in made]
    except (UserError, ValueError) as error:
        print(f"pack_for_gpu: {error}", file=sys.stderr)
        return 2
    for name in ("gpu_slice.py", "README.md"):
        shutil.copyfile(SCRIPTS / "gpu" / name, args.out / name)
    python = "{}.{}".format(*sys.version_info)
    pack = {"commit": commit(), "python": python, "pieces": args.pieces, "files": files}
    (args.out / "pack.json").write_text(json.dumps(pack, indent=1), encoding="utf-8")
    for part in (part for file in files for part in file["parts"]):
        print(f"{part['size'] / 1e6:6.1f} MB  {args.out / part['name']}")
    print(f"commit {commit()}, Python {python}; copy the folder, its parts also one by one")
    return 0


def cut(file: Path, into: Path, size: int) -> dict[str, Any]:
    """Write a file's parts into a folder; return what describes them."""
    parts = []
    with file.open("rb") as source:
        while content := source.read(size):
            part = into / f"{file.name}.{len(parts):03d}"
            part.write_bytes(content)
            parts.append({"name": part.name, "size": len(content), "sha256": digest(part)})
    return {"name": file.name, "sha256": digest(file), "parts": parts}


def write_code(path: Path, there: list[str]) -> Path:
    """Write ``code.zip``: the package with its commit, what it needs, and the scripts."""
    version = importlib.metadata.version("bnrecon")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for top, to in (("bnrecon", "site/bnrecon"), ("configs", "site/bnrecon/configs")):
            for file in sorted((ROOT / top).rglob("*")):
                name = file.relative_to(ROOT / top).as_posix()
                if file.is_file() and not SKIPPED.search(name):
                    archive.write(file, f"{to}/{name}")
        metadata = f"Metadata-Version: 2.1\nName: bnrecon\nVersion: {version}\n"
        archive.writestr(f"site/bnrecon-{version}.dist-info/METADATA", metadata)
        if (made_from := commit()) is not None:
            archive.writestr(f"site/bnrecon/{RECORDED}", f"{made_from}\n")
        for script in sorted(SCRIPTS.rglob("*.py")):
            archive.write(script, f"scripts/{script.relative_to(SCRIPTS).as_posix()}")
        for package in sorted(needed({*map(canonicalize_name, (*THERE, *there))})):
            for installed in importlib.metadata.files(package) or ():
                if not SKIPPED.search(installed.as_posix()):
                    archive.write(str(installed.locate()), f"site/{installed.as_posix()}")
    return path


def needed(there: set[NormalizedName]) -> set[NormalizedName]:
    """The packages that bnrecon needs, and those that they need, but for those that are there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names: set[NormalizedName] = set()
    remaining = list(project["dependencies"])
    while remaining:
        requirement = Requirement(remaining.pop())
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and name not in there | names:
            names.add(name)
            remaining += importlib.metadata.requires(name) or ()
    return names


def write_images(name: str, root: str | None, folder: Path) -> Path:
    """Write a data set as a compressed archive of its pixels, whatever its files are here."""
    images = load(DataSpec(name, root=root, download=False))
    assert isinstance(images, InMemoryImages), "as CIFAR's are"
    splits = ("train_x", "train_y", "test_x", "test_y")
    arrays = {split: getattr(images, split).numpy() for split in splits}
    path = folder / f"{name}.npz"
    np.savez_compressed(path, classes=np.array(images.classes), **arrays)
    return path


if __name__ == "__main__":
    sys.exit(main())
