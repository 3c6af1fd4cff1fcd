#!/usr/bin/env python3
"""Prepare what a GPU machine without network and git needs, in parts to be copied one by one.

    python scripts/pack_for_gpu.py --out FOLDER [--data FOLDER] [--pieces NAME ...]
        [--results outputs] [--wheels FOLDER] [--python 3.12] [--there NAME ...] [--part-mb 56]

The folder holds `gpu_slice.py`, which runs there, and the parts of
- code.zip: bnrecon with its commit, and the packages that it needs. Those in --there (torch,
  torchvision and what comes with them) are left out; a wheel in --wheels is taken before the
  installed package, and is needed for compiled packages where --python is another version.
- cifar10.npz, cifar100.npz: the images that the pieces need, compressed without loss.
- results.zip, with --results: targets and results so far, so that nothing is computed twice.
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

import numpy as np
import parts
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name, parse_wheel_filename
from pieces import Piece, chosen

from bnrecon.data import DataSpec, InMemoryImages, load
from bnrecon.reproduction.archive import export_results
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.provenance import RECORDED, commit

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
THERE = ("torch", "torchvision", "numpy", "pillow", "pytest")  # pytest: nobody tests there
RUNNER = ("gpu_slice.py", "parts.py", "pieces.py")
SKIPPED = re.compile(r"(^|/)(__pycache__|tests)/|\.pyc$|^\.\.")
COMPILED = re.compile(r"\.cpython-(\d)(\d+)\S*\.(so|pyd)$")

MAKEFILE = """\
# Made by pack_for_gpu.py: see docs/benchmarks.md of bnrecon.
PYTHON ?= python3
MINUTES ?= 9
PIECES ?= {pieces}
ARCHIVE ?= results.zip

gpu-slice:
\t$(PYTHON) gpu_slice.py --minutes $(MINUTES) --archive $(ARCHIVE) --pieces $(PIECES)
"""


def main(arguments: list[str] | None = None) -> int:
    """Pack, and list the parts."""
    args = read_arguments(arguments)
    try:
        wanted = chosen(args.pieces)
        args.out.mkdir(parents=True, exist_ok=True)
        for old in args.out.glob("*.[0-9][0-9][0-9]"):
            old.unlink()
        with tempfile.TemporaryDirectory() as folder:
            made = [write_code(args, Path(folder))]
            images = sorted({name for piece in wanted for name in piece.images})
            made += [write_images(name, args.data, Path(folder)) for name in images]
            if args.results is not None:
                made.append(Path(folder) / "results.zip")
                export_results(args.results, made[-1], limit=None)
            size = int(args.part_mb * 2**20)
            files = [parts.cut(file, args.out, size) for file in made]
    except ValueError as error:
        print(f"pack_for_gpu: {error}", file=sys.stderr)
        return 2
    write_runner(args, wanted, files)
    listed = [part for file in files for part in file["parts"]]
    for part in listed:
        print(f"{part['size'] / 1e6:6.1f} MB  {args.out / part['name']}")
    print(f"commit {commit()}, Python {args.python}; copy the folder, its parts also one by one")
    return 0


def read_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", default=None)
    parser.add_argument("--pieces", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--results", type=Path, default=None)
    parser.add_argument("--wheels", type=Path, default=None)
    parser.add_argument("--python", default="{}.{}".format(*sys.version_info))
    parser.add_argument("--there", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--part-mb", type=float, default=parts.SIZE / 2**20)
    return parser.parse_args(arguments)


def write_code(args: argparse.Namespace, folder: Path) -> Path:
    """Write ``code.zip``: the package with its commit, what it needs, and the scripts."""
    path = folder / "code.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for top, name in ((ROOT / "bnrecon", "bnrecon"), (ROOT / "configs", "bnrecon/configs")):
            for file in sorted(top.rglob("*")):
                if file.is_file() and not SKIPPED.search(file.relative_to(top).as_posix()):
                    archive.write(file, f"site/{name}/{file.relative_to(top).as_posix()}")
        version = importlib.metadata.version("bnrecon")
        about = f"Metadata-Version: 2.1\nName: bnrecon\nVersion: {version}\n"
        archive.writestr(f"site/bnrecon-{version}.dist-info/METADATA", about)
        if (made_from := commit()) is not None:
            archive.writestr(f"site/bnrecon/{RECORDED}", f"{made_from}\n")
        for script in sorted(HERE.glob("*.py")):
            archive.write(script, f"scripts/{script.name}")
        add_packages(archive, args)
    return path


def add_packages(archive: zipfile.ZipFile, args: argparse.Namespace) -> None:
    """Add the packages that bnrecon needs, from wheels or as they are installed here.

    Raises:
        ValueError: naming compiled packages of which there is no wheel for the Python there.
    """
    wheels = {
        parse_wheel_filename(file.name)[0]: file
        for file in sorted(args.wheels.glob("*.whl") if args.wheels else [])
    }
    lacking = []
    for name in sorted(needed({*map(canonicalize_name, (*THERE, *args.there))})):
        if name in wheels:
            add_wheel(archive, wheels[name])
        elif compiled_for(name) in (None, args.python):
            for file in importlib.metadata.files(name) or ():
                if not SKIPPED.search(file.as_posix()):
                    archive.write(str(file.locate()), f"site/{file.as_posix()}")
        else:
            lacking.append(f"{name}=={importlib.metadata.version(name)}")
    if lacking:
        raise ValueError(
            f"compiled for another Python than {args.python}: {' '.join(lacking)}; name those that "
            "the machine has in --there, and give --wheels FOLDER with the others: python -m pip "
            f"download --no-deps --only-binary=:all: --python-version {args.python} -d FOLDER NAME"
        )


def needed(there: set[NormalizedName]) -> set[NormalizedName]:
    """The packages that bnrecon needs, and those that they need, but for those that are there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found: set[NormalizedName] = set()
    open_ = list(project["dependencies"])
    while open_:
        requirement = Requirement(open_.pop())
        name = canonicalize_name(requirement.name)
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if applies and name not in there | found:
            found.add(name)
            open_ += importlib.metadata.requires(name) or ()
    return found


def compiled_for(name: str) -> str | None:
    """The version of Python that an installed package is compiled for; ``None`` for any."""
    for file in importlib.metadata.files(name) or ():
        if match := COMPILED.search(file.name):
            return f"{match[1]}.{match[2]}"
    return None


def add_wheel(archive: zipfile.ZipFile, wheel: Path) -> None:
    """Unpack a wheel into the archive."""
    with zipfile.ZipFile(wheel) as file:
        for name in file.namelist():
            place = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", name)
            if not (name.endswith("/") or ".data/" in place or SKIPPED.search(place)):
                archive.writestr(f"site/{place}", file.read(name))


def write_images(name: str, root: str | None, folder: Path) -> Path:
    """Write a data set as a compressed archive of its pixels, whatever its files are here."""
    try:
        images = load(DataSpec(name, root=root, download=False))
    except UserError as error:
        raise ValueError(f"{name}: {error} (--data FOLDER says where)") from None
    if not isinstance(images, InMemoryImages):
        raise ValueError(f"{name}: only images that are held in memory are packed")
    splits = ("train_x", "train_y", "test_x", "test_y")
    arrays = {split: getattr(images, split).numpy() for split in splits}
    path = folder / f"{name}.npz"
    np.savez_compressed(path, classes=np.array(images.classes), **arrays)
    return path


def write_runner(args: argparse.Namespace, wanted: list[Piece], files: list[dict]) -> None:
    """Write what runs there: the script, its neighbours, a Makefile, the list of parts."""
    for name in RUNNER:
        shutil.copyfile(HERE / name, args.out / name)
    pieces = [piece.name for piece in wanted]
    about = {"commit": commit(), "python": args.python, "pieces": pieces, "files": files}
    (args.out / "pack.json").write_text(json.dumps(about, indent=1), encoding="utf-8")
    text = MAKEFILE.format(pieces=" ".join(pieces))
    (args.out / "Makefile").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
