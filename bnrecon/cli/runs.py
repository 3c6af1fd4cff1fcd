"""`bnrecon run` and `bnrecon train`: one run, a sweep, or only a target."""

from __future__ import annotations

import argparse
import functools
import logging
import multiprocessing
import os
import re
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bnrecon.cli import exit_codes, hydra_app, output
from bnrecon.cli.parser import Commands, add_detach
from bnrecon.jobs import options as job_options
from bnrecon.runtime import interruption
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.user_code import import_user_modules

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from bnrecon.config.schema import RunConfig

logger = logging.getLogger(__name__)


def add_commands(commands: Commands) -> None:
    """Add `run` and `train`, whose help shows the composed values of all options."""
    run, train = commands.add("run", _run), commands.add("train", _train)
    run.explain = train.explain = _explain
    hydra_app.add_flags(run)
    add_detach(run, "of a sweep with")


def _explain(words: Sequence[str]) -> str:
    """The meaning and the allowed values of every option."""
    from bnrecon.config import help

    return help.text(words)


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
        return _launch(arguments)
    if not hydra_app.is_sweep(arguments):
        _refuse_launchers(arguments.words, "launchers run sweeps; add -m")
    try:
        plan = hydra_app.plan(arguments)
    except Exception as error:
        return _report_composition(error)
    if plan is None:
        if of_sweeps:
            raise UserError(f"{of_sweeps[0]}: not with hydra/launcher= or hydra/sweeper=")
        interruption.finish_loading()  # the launcher's processes load the slow libraries
        return _launch(arguments)
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


def _launch(arguments: argparse.Namespace) -> int:
    """Let Hydra compose the options and run the result."""
    try:
        hydra_app.launch(_Job(logging.getLogger("bnrecon").level), arguments)
    except SystemExit as leaving:  # by a run, or by Hydra's help
        return exit_codes.DONE if leaving.code is None else exit_codes.report(leaving)
    except Exception as error:  # of a launcher or Hydra: runs report their failures
        return _report_composition(error)
    return exit_codes.DONE


def _refuse_launchers(options: list[str], why: str) -> None:
    for option in options:
        if option.lstrip("+").startswith("hydra/launcher="):
            raise UserError(f"{option}: {why}")


def _refuse_useless(options: list[str]) -> None:
    """Refuse Hydra's options for its own jobs; its mode and search path have been applied."""
    for option in options:
        if re.match(r"[+~]*hydra[./](?!mode=|searchpath=)", option):
            raise UserError(f"{option}: has no effect on a single run")


def _report_composition(error: Exception) -> int:
    """Report an exception from Hydra; its plain ``Exception`` is a mistake in the options too."""
    if isinstance(error, UserError | RunError | OSError | ImportError | BrokenExecutor):
        return exit_codes.report(error)
    from bnrecon.config.explanation import explain

    what = "a yaml file is not UTF-8: " if isinstance(error, UnicodeDecodeError) else ""
    return exit_codes.report(UserError(f"{what}{explain(error)}"))


@dataclass(frozen=True)
class _Job:
    """One run of a sweep, perhaps in a launcher's process; it reports its failure itself."""

    level: int  # lowest level of log messages to show
    command: int = field(default_factory=os.getpid)  # the process that launches it

    def __call__(self, composed: DictConfig) -> None:
        if multiprocessing.current_process().name == "MainProcess":
            return self._run(composed)
        with interruption.ending_with_parent(self.command):  # one of joblib's
            return self._run(composed)

    def _run(self, composed: DictConfig) -> None:
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        # Unresolved: an interpolation may be invalid, which is to be reported.
        overrides = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
        words = " ".join(cast("list[str]", overrides))
        with output.log_to_stderr(self.level):
            try:
                _do_run(composed)
            except BaseException as error:
                code = exit_codes.report(error)
                if code != exit_codes.INTERRUPTED:
                    raise RunError(f"failed (exit code {code}): {words}") from None
                raise SystemExit(code) from None


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
    _refuse_launchers(arguments.words, "launchers run sweeps, with bnrecon run -m")
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
