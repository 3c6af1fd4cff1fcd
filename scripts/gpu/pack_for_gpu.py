#!/usr/bin/env python3
"""Prepare a folder for a GPU machine with Python and torch, but without network and git.

    python scripts/gpu/pack_for_gpu.py FOLDER [--data FOLDER] [--pieces NAME ...]
        [--results outputs] [--there NAME ...]

See README.md. The folder has the scripts; in packages/ bnrecon with its commit, and its
dependencies as installed here, except torch, torchvision, NumPy, Pillow and those in --there; in
data/ the images that the pieces need, compressed without loss; and, with --results, in outputs/ the
targets and results so far, so that nothing is computed twice.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from gpu_slice import PIECES, chosen
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bnrecon.data import DataSpec, InMemoryImages, load
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.provenance import RECORDED, commit

SCRIPTS = Path(__file__).resolve().parent.parent
ROOT = SCRIPTS.parent
THERE = ("torch", "torchvision", "numpy", "pillow", "pytest")  # pytest: no tests run there
RESULTS = (".json", ".safetensors", ".csv", ".md", ".txt")
SKIPPED = re.compile(r"(^|/)(__pycache__|tests)/|\.pyc$|^\.\.")


def main(arguments: list[str] | None = None) -> int:
    """Create the folder."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--there", nargs="*", default=[])
    parser.add_argument("--pieces", nargs="+", default=[], choices=[piece.name for piece in PIECES])
    args = parser.parse_args(arguments)
    if args.folder.exists():
        parser.error(f"{args.folder} is there; remove it or give a new folder")
    if args.results is not None and not args.results.is_dir():
        parser.error(f"--results {args.results}: no such folder")
    try:
        for name in sorted({name for piece in chosen(args.pieces) for name in piece.images}):
            write_images(name, args.data, args.folder / "data")
    except UserError as error:
        shutil.rmtree(args.folder, ignore_errors=True)  # created above
        parser.error(str(error))
    shutil.copytree(SCRIPTS, args.folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    write_packages(args.folder / "packages", args.there)
    for path in args.results.rglob("*") if args.results else ():
        if path.suffix in RESULTS and path.is_file():
            copy(path, args.folder / "outputs" / path.relative_to(args.results))
    print(f"{args.folder}: commit {commit()}, Python {'{}.{}'.format(*sys.version_info)}")
    return 0


def write_packages(packages: Path, there: list[str]) -> None:
    """Copy the package with its commit, and its dependencies."""
    skipped = shutil.ignore_patterns("__pycache__", "tests", "*.pyc")
    for top, to in ((ROOT / "bnrecon", "bnrecon"), (ROOT / "configs", "bnrecon/configs")):
        shutil.copytree(top, packages / to, ignore=skipped)
    (packages / "python").write_text(sys.version[:4], encoding="utf-8")
    bnrecon = importlib.metadata.distribution("bnrecon")
    about = packages / f"bnrecon-{bnrecon.version}.dist-info"
    about.mkdir()
    text = bnrecon.read_text("METADATA") or bnrecon.read_text("PKG-INFO")  # if not built
    (about / "METADATA").write_text(text, encoding="utf-8")
    if (made_from := commit()) is not None:
        (packages / "bnrecon" / RECORDED).write_text(f"{made_from}\n", encoding="utf-8")
    for package in needed(bnrecon.requires or [], (*THERE, *there)):
        for installed in importlib.metadata.files(package) or ():
            if not SKIPPED.search(installed.as_posix()):
                copy(Path(str(installed.locate())), packages / installed)


def copy(file: Path, to: Path) -> None:
    """Copy a file into a folder, which is created if need be."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, to)


def needed(requirements: Iterable[str], there: Iterable[str] = ()) -> set[str]:
    """The packages of these requirements and their dependencies, except those in ``there``."""
    excluded, names = set(map(canonicalize_name, there)), set()
    remaining = list(requirements)
    while remaining:
        requirement = Requirement(remaining.pop())
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and name not in excluded | names:
            names.add(name)
            remaining += importlib.metadata.requires(name) or ()
    return names


def write_images(name: str, root: str | None, folder: Path) -> None:
    """Write a data set as a compressed archive of its pixels, whatever its format here."""
    images = load(DataSpec(name, root=root, download=False))
    assert isinstance(images, InMemoryImages), "as CIFAR's are"
    splits = ("train_x", "train_y", "test_x", "test_y")
    arrays = {split: getattr(images, split).numpy() for split in splits}
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{name}.npz", classes=np.array(images.classes), **arrays)


if __name__ == "__main__":
    sys.exit(main())
