"""Hydra, which composes a run or a sweep from options and yaml files and calls the job."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bnrecon.runtime.environment import environment
from bnrecon.runtime.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

__all__ = ["add_flags", "is_sweep", "launch"]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add Hydra's own options to the parser of a command."""
    add = parser.add_argument
    add(
        "-m",
        "--multirun",
        action="store_true",
        help="sweep: every combination of comma-separated values",
    )
    add("--config-dir", "-cd", metavar="DIR", help="find own yaml files in DIR/<group>/*.yaml")
    add("--config-name", "-cn", metavar="NAME", help="start from NAME.yaml instead of run.yaml")
    add(
        "--cfg",
        "-c",
        choices=("job", "hydra", "all"),
        metavar="PART",
        help="job, hydra or all: print the composed configuration, and stop",
    )
    add("--resolve", action="store_true", help="with --cfg: resolve interpolations")
    add("--package", "-p", metavar="NAME", help="with --cfg: only this part, as in target")
    add(
        "--info",
        "-i",
        nargs="?",
        const="all",
        choices=("all", "config", "defaults", "defaults-tree", "plugins", "searchpath"),
        metavar="WHAT",
        help="print what Hydra knows (all, defaults-tree, searchpath, ...), and stop",
    )
    add("--hydra-help", action="store_true", help="print Hydra's own help, and stop")


def _flags(given: argparse.Namespace) -> Iterator[str]:
    """The words that give Hydra the same flags."""
    for name in ("multirun", "resolve", "hydra_help"):
        if getattr(given, name):
            yield f"--{name.replace('_', '-')}"
    for name in ("config_dir", "config_name", "cfg", "package", "info"):
        if (value := getattr(given, name)) is not None:
            yield f"--{name.replace('_', '-')}={value}"


def is_sweep(given: argparse.Namespace) -> bool:
    """Whether a sweep is requested, as far as the command line tells."""
    return given.multirun or "hydra.mode=MULTIRUN" in given.options


def launch(job: Callable[[DictConfig], object], given: argparse.Namespace) -> None:
    """Have Hydra compose the options of ``given`` and call ``job`` for each run.

    Args:
        job: called with the composed configuration; a launcher may call it in another process.
        given: the parsed command line.

    Raises:
        UserError: for flags and files that cannot be used; Hydra's own exceptions for options.
    """
    import hydra

    from bnrecon.config import composition, schema

    if given.config_dir == "":
        raise UserError("--config-dir= is empty; give the folder that holds own yaml files")
    schema.register_schema()
    options = composition.as_overrides([*given.options, *_folders(given)], is_sweep(given))
    decorate = hydra.main(
        version_base="1.3", config_path="pkg://bnrecon.configs", config_name="run"
    )
    try:
        with _hydra_arguments(["bnrecon run", *_flags(given), "--", *options]):
            decorate(job)()
    except UnicodeDecodeError as error:  # Hydra does not tell which file
        broken = ", ".join(_files_not_utf8(Path(given.config_dir or ".")))
        raise UserError(f"{broken}: yaml files are UTF-8 ({error.reason})") from None


def _folders(given: argparse.Namespace) -> list[str]:
    """Hydra's folders. It creates one before anything is checked: the current one, which exists.

    A sweep's is named by its options and flags, however these are written (``-m``, ``--multirun``).
    """
    flags = ("-m" if flag == "--multirun" else flag for flag in _flags(given))
    content = " ".join(sorted([*flags, *given.options])).encode(errors="backslashreplace")
    name = hashlib.sha256(content).hexdigest()[:10]
    places = {"hydra.run.dir": ".", "hydra.sweep.dir": f"${{outputs}}/sweeps/{name}"}
    known = {option.partition("=")[0] for option in given.options}
    return [f"{option}={place}" for option, place in places.items() if option not in known]


@contextlib.contextmanager
def _hydra_arguments(words: list[str]) -> Iterator[None]:
    """``hydra.main`` reads ``sys.argv`` and the environment; both are as before after the block."""
    arguments, sys.argv = sys.argv, words
    try:
        with environment(HYDRA_FULL_ERROR="1"):  # exceptions reach the caller
            yield
    finally:
        sys.argv = arguments


def _files_not_utf8(folder: Path) -> list[str]:
    """Up to three yaml files that are no UTF-8."""
    broken = []
    for file in sorted(folder.rglob("*.yaml")):
        try:
            file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            broken.append(str(file))
        except OSError:
            continue
    return broken[:3]
