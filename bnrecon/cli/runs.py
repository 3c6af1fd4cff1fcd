"""`bnrecon run` and `bnrecon train`: one run, a sweep, or only a target."""

from __future__ import annotations

import argparse
import contextlib
import functools
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bnrecon.cli import exit_codes, hydra_app, output
from bnrecon.cli.parser import Commands, add_detach
from bnrecon.jobs import options as job_options
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.user_code import import_user_modules

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from bnrecon.config.schema import RunConfig


def add_commands(commands: Commands) -> None:
    """Add `run` and `train`, whose help shows the composed values of all options."""
    run, train = commands.add("run", _run), commands.add("train", _train)
    run.explain = train.explain = _explain
    hydra_app.add_flags(run)
    add_detach(run, "of a sweep with")


def _explain(arguments: argparse.Namespace) -> str:
    """The meaning and the allowed values of every option, with the values of the first run."""
    from bnrecon.config import composition, help

    if not hasattr(arguments, "config_dir"):  # of train
        return help.text(composition.compose(arguments.words))
    *_, arguments.words = job_options.split(arguments.words, job_options.OPTIONS)
    with _explained():
        composed = hydra_app.plan(arguments).runs[0][1]
    return help.text(composition.from_hydra(composed))


def _run(arguments: argparse.Namespace) -> int:
    """Do one run or a sweep. A sweep continues after a failed run; the worst exit code counts."""
    values, slurm, arguments.words = job_options.split(arguments.words, job_options.OPTIONS)
    of_sweeps = [*(f"{name}={value}" for name, value in values.items()), *slurm]
    of_sweeps += ["--detach"] if arguments.detach else []
    # Hydra shows these instead of a run, and itself refuses flags that need them.
    shows = (arguments.cfg, arguments.info, arguments.hydra_help)
    if arguments.package and not arguments.cfg:
        raise UserError(f"--package={arguments.package}: is for --cfg")
    if any(shows) or arguments.resolve:
        if of_sweeps:
            raise UserError(f"{of_sweeps[0]}: not with --cfg, --info or --hydra-help")
        return _show(arguments)
    with _explained():
        plan = hydra_app.plan(arguments)
    if not plan.is_sweep:
        if others := [word for word in of_sweeps if not word.startswith("jobs=")]:
            raise UserError(f"{others[0]}: is for sweeps; add -m")
        _refuse_useless(arguments.words)
        ((_, composed),) = plan.runs
        _do_run(composed, job_options.read(values, slurm, False, None).jobs)
        return exit_codes.DONE
    config_dir = None if arguments.config_dir is None else Path(arguments.config_dir)
    options = job_options.read(values, slurm, arguments.detach, config_dir)
    from bnrecon.cli.sweeps import run_sweep

    return run_sweep(plan, options, arguments)


def _show(arguments: argparse.Namespace) -> int:
    """Let Hydra show what the flags ask for."""
    try:
        with _explained():
            hydra_app.show(arguments)
    except SystemExit as leaving:
        return exit_codes.DONE if leaving.code is None else exit_codes.report(leaving)
    return exit_codes.DONE


def _refuse_useless(options: list[str]) -> None:
    """Refuse Hydra's options for its own jobs; its mode and search path have been applied."""
    for option in options:
        if re.match(r"[+~]*hydra[./](?!mode=|searchpath=)", option):
            raise UserError(f"{option}: has no effect on a single run")


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Make Hydra's exceptions ``UserError``; its plain ``Exception`` is a mistake too."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "provider=hydra.searchpath")  # no such folder
            yield
    except (UserError, OSError, ImportError):
        raise
    except Exception as error:
        from bnrecon.config.explanation import explain

        what = "a yaml file is not UTF-8: " if isinstance(error, UnicodeDecodeError) else ""
        raise UserError(f"{what}{explain(error)}") from None


def _do_run(composed: DictConfig, jobs: int = 1) -> None:
    """Do the main job, its layers in ``jobs`` processes, and print its table."""
    from bnrecon.config import composition

    config = composition.from_hydra(composed)
    _load_libraries(config)
    from bnrecon.config import checks
    from bnrecon.run import main_job, preparation

    preparation.check_names(config)
    checks.require_folders(config)
    share = None
    if jobs > 1:
        from bnrecon.jobs.local_processes import require_room
        from bnrecon.run.together import share_layers
        from bnrecon.runtime.hardware import resolve_device

        require_room(jobs, resolve_device(config.device))
        share = functools.partial(share_layers, jobs)
    output.write(main_job.run(config, share).text())


def _train(arguments: argparse.Namespace) -> int:
    """Train a target, or load the trained one, and print its accuracy."""
    from bnrecon.config import checks, composition

    config = composition.compose(arguments.words)
    _load_libraries(config)
    from bnrecon.run import main_job

    name, folder = ("targets", config.targets) if config.targets else ("outputs", config.outputs)
    checks.require_folder(name, folder)
    if text := main_job.train_only(config):  # empty in every process but the first
        output.write(text)
    return exit_codes.DONE


def _load_libraries(config: RunConfig) -> None:
    """Import the user's modules and slow libraries; then an interruption raises an exception."""
    import_user_modules(config.imports)
    import bnrecon.run.main_job  # noqa: F401 (for its libraries)
    from bnrecon.runtime.interruption import finish_loading

    finish_loading()
