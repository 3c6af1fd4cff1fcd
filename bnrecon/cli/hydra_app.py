"""Hydra composes a run or a sweep from options and yaml files, and calls the job."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bnrecon.runtime.environment import environment
from bnrecon.runtime.errors import UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add Hydra's options to the parser of a command."""
    add = parser.add_argument
    sweep = "sweep: every combination of comma-separated values"
    add("-m", "--multirun", action="store_true", help=sweep)
    add("--config-dir", "-cd", metavar="DIR", help="use your own yaml files DIR/<group>/*.yaml")
    add("--config-name", "-cn", metavar="NAME", help="start from NAME.yaml instead of run.yaml")
    parts = ("job", "hydra", "all")
    composed = "job, hydra or all: print the composed configuration, and stop"
    add("--cfg", "-c", choices=parts, metavar="PART", help=composed)
    add("--resolve", action="store_true", help="with --cfg: resolve interpolations")
    add("--package", "-p", metavar="NAME", help="with --cfg: only this part, as in target")
    topics = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
    shown = "print what Hydra knows (all, defaults-tree, searchpath, ...), and stop"
    add("--info", "-i", nargs="?", const="all", choices=topics, metavar="WHAT", help=shown)
    add("--hydra-help", action="store_true", help="print Hydra's own help, and stop")


def flags(arguments: argparse.Namespace) -> Iterator[str]:
    """The words that pass the same flags to Hydra."""
    switches = {"multirun": "-m", "resolve": "--resolve", "hydra_help": "--hydra-help"}
    yield from (flag for name, flag in switches.items() if getattr(arguments, name))
    for name in ("config_dir", "config_name", "cfg", "package", "info"):
        if (value := getattr(arguments, name)) is not None:
            yield f"--{name.replace('_', '-')}={value}"


def is_sweep(arguments: argparse.Namespace) -> bool:
    """Whether the command line requests a sweep."""
    return arguments.multirun or "hydra.mode=MULTIRUN" in arguments.words


def show(arguments: argparse.Namespace) -> None:
    """Let Hydra print its help, its plugins or the composed configuration; nothing is run.

    Raises:
        UserError: for flags and files that cannot be used; Hydra's own exceptions for options.
    """
    import hydra

    options = _overrides(arguments)
    before, sys.argv = sys.argv, ["bnrecon run", *flags(arguments), "--", *options]
    try:
        with environment(HYDRA_FULL_ERROR="1"):  # exceptions reach the caller
            hydra.main("pkg://bnrecon.configs", "run", version_base="1.3")(lambda _: None)()
    finally:
        sys.argv = before


@dataclass(frozen=True)
class Plan:
    """A run, or the runs of a sweep: each one's overrides and configuration."""

    is_sweep: bool  # a yaml file may request a sweep, too
    folder: str  # of the sweep
    runs: list[tuple[list[str], DictConfig]]  # overrides and configurations


def plan(arguments: argparse.Namespace) -> Plan:
    """The runs that Hydra composes.

    Raises:
        UserError: for flags and files that cannot be used, launchers and sweepers; Hydra's own
            exceptions for options.
    """
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra._internal.hydra import Hydra
    from hydra._internal.utils import create_config_search_path
    from hydra.core.config_search_path import SearchPathQuery
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    overrides = _overrides(arguments)
    search_path = create_config_search_path("pkg://bnrecon.configs")
    if arguments.config_dir is not None:
        folder = Path(arguments.config_dir).absolute()
        schema = SearchPathQuery(provider="schema")
        search_path.prepend("command-line", f"file://{folder}", anchor=schema)
    try:
        loader = Hydra.create_main_hydra2("bnrecon", search_path).config_loader
        mode = RunMode.MULTIRUN if is_sweep(arguments) else RunMode.RUN
        whole = loader.load_configuration(arguments.config_name or "run", overrides, run_mode=mode)
        HydraConfig.instance().set_config(whole)  # for interpolations of the user's yaml files
        choices, hydra = whole.hydra.runtime.choices, whole.hydra
        # Unresolved: an interpolation refers to the run that it belongs to.
        task = cast("list[str]", OmegaConf.to_container(hydra.overrides.task, resolve=False))
        if (choices["hydra/launcher"], choices["hydra/sweeper"]) != ("basic", "basic"):
            raise UserError("hydra/launcher=, hydra/sweeper=: give jobs= or cluster= instead")
        if RunMode.MULTIRUN not in (mode, hydra.mode):
            return Plan(False, "", [(task, _without_hydra(whole))])
        params = [f"{key}={value}" for key, value in (hydra.sweeper.params or {}).items()]
        words = OverridesParser.create(loader).parse_overrides([*params, *task])
        jobs = BasicSweeper.split_arguments(words, None)[0]
        runs = []
        for job in jobs:
            composed = loader.load_sweep_config(whole, job)
            HydraConfig.instance().set_config(composed)  # each run has its own choices
            composed = _without_hydra(composed)
            OmegaConf.resolve(composed)
            runs.append((list(job), composed))
        return Plan(True, hydra.sweep.dir, runs)
    finally:
        GlobalHydra.instance().clear()


def _without_hydra(composed: DictConfig) -> DictConfig:
    """The configuration without Hydra's."""
    from omegaconf import open_dict, read_write

    with read_write(composed), open_dict(composed):
        del composed["hydra"]
    return composed


def _overrides(arguments: argparse.Namespace) -> list[str]:
    """The options as Hydra's overrides, with its folders."""
    from bnrecon.config import composition, schema

    if arguments.config_dir is not None:
        composition.check_config_dir(Path(arguments.config_dir))
    schema.register_schema()
    schema.register_choices(arguments.words, arguments.config_dir)
    return composition.as_overrides([*arguments.words, *_folders(arguments)], is_sweep(arguments))


def _folders(arguments: argparse.Namespace) -> list[str]:
    """Hydra's folders: the current one, and a sweep's, named by its options and flags."""
    words = sorted([*flags(arguments), *arguments.words])
    content = " ".join(words).encode(errors="backslashreplace")
    name = hashlib.sha256(content).hexdigest()[:10]
    folders = {"hydra.run.dir": ".", "hydra.sweep.dir": f"${{outputs}}/sweeps/{name}"}
    chosen = option_names(arguments.words)
    return [f"{option}={path}" for option, path in folders.items() if option not in chosen]


def option_names(words: Sequence[str]) -> set[str]:
    """The options that words set, without Hydra's leading ``+``."""
    return {word.lstrip("+").partition("=")[0] for word in words}
