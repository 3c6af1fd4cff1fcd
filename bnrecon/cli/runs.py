"""`bnrecon run` and `bnrecon train`: one run, a sweep, or a target alone."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
from concurrent.futures import BrokenExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from bnrecon.cli import exit_codes, hydra_app, output
from bnrecon.cli.parser import Parser
from bnrecon.cli.user_modules import import_user_module
from bnrecon.runtime import interruption
from bnrecon.runtime.errors import RunError, UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from bnrecon.cli.sweeps import Sweep
    from bnrecon.config.schema import RunConfig

__all__ = ["add_commands"]

logger = logging.getLogger(__name__)


def add_commands(commands: Any, shared: Parser) -> None:
    """Add `run` and `train` to the parser's commands."""
    run = commands.add_parser(
        "run",
        parents=[shared],
        add_help=False,
        usage="bnrecon run [NAME=VALUE ...] [-m] [--config-dir DIR] [--cfg job] [-q] [-v] [-h]",
        help="train a target or take the trained one, rebuild it, evaluate it, write a table",
        description="Train a target, rebuild it by normalization parameters alone, evaluate it.",
    )
    hydra_app.add_flags(run)
    train = commands.add_parser(
        "train",
        parents=[shared],
        add_help=False,
        usage="bnrecon train [NAME=VALUE ...] [-q] [-v] [-h]",
        help="train a target alone, or show the trained one",
        description="Train a target alone, or show the trained one; alone or under torchrun.\n"
        "Takes the options of bnrecon run; features and solver make no difference.",
    )
    for parser, function in ((run, _run), (train, _train)):
        # The help shows the values that the options lead to, so it is not argparse's own.
        parser.add_argument("-h", "--help", action="store_true", help="show this help and exit")
        parser.add_argument("options", nargs="*", metavar="NAME=VALUE", help=argparse.SUPPRESS)
        parser.set_defaults(function=function, parser=parser)


def _help(given: argparse.Namespace) -> int:
    """The command's flags, then what every option means and allows."""
    from bnrecon.config import help

    output.write(f"{given.parser.format_help()}\n{help.text(given.options)}")
    return exit_codes.DONE


def _run(given: argparse.Namespace) -> int:
    """Do one run or a sweep. A sweep goes on after a failed job and ends in the worst exit code."""
    if given.help:
        return _help(given)
    if not hydra_app.is_sweep(given) and not given.cfg and not given.info:
        _refuse_launchers(given.options, "launchers run sweeps; add -m")
    from bnrecon.cli import sweeps

    with sweeps.watch() as sweep:
        try:
            hydra_app.launch(_Job(logging.getLogger("bnrecon").level), given)
        except SystemExit as leaving:  # of a job, of the start of a sweep, or of Hydra's own help
            return _exit_code(leaving)
        except KeyboardInterrupt:
            logger.error("interrupted; %s%s", exit_codes.RESUMABLE, sweep.end_workers())
            return exit_codes.INTERRUPTED
        except Exception as error:  # of a launcher or Hydra: a job reports its own failure
            code = _report_composition(error)
            return max(code, _finish_sweep(sweep)) if sweep.has_records() else code
        return exit_codes.DONE if sweep.folder is None else _finish_sweep(sweep)


def _refuse_launchers(options: list[str], why: str) -> None:
    for option in options:
        if option.lstrip("+").startswith("hydra/launcher="):
            raise UserError(f"{option}: {why}")


def _exit_code(leaving: SystemExit) -> int:
    code: object = leaving.code
    if code is None:
        return exit_codes.DONE
    return exit_codes.report(code if isinstance(code, Exception) else leaving)


def _finish_sweep(sweep: Sweep) -> int:
    """Print the table of a sweep, its folder, and what is missing; return its worst exit code."""
    outcome = sweep.finish()
    if outcome.table is not None:
        output.write(f"\n{outcome.table}")
    for problem in outcome.problems:
        logger.warning(problem)
    output.write(f"\n{sweep.folder}")
    return outcome.code


def _report_composition(error: Exception) -> int:
    """Report what Hydra raises; its plain exceptions are mistakes in the options too."""
    if isinstance(error, UserError | RunError | OSError | ImportError | BrokenExecutor):
        return exit_codes.report(error)
    from bnrecon.cli.launcher_options import explain_option
    from bnrecon.config.explanation import explain

    return exit_codes.report(UserError(explain_option(error) or explain(error)))


@dataclass(frozen=True)
class _Job:
    """One run, alone or of a sweep; a launcher may call it in another process.

    It reports its own failure and returns the exit code, so that a sweep goes on with the next job.
    """

    level: int  # of the log messages that are shown
    command: int = field(default_factory=os.getpid)  # the process that launches it

    def __call__(self, composed: DictConfig) -> int:
        if multiprocessing.current_process().name == "MainProcess":
            return self._run(composed)
        with interruption.ending_with_parent(self.command):  # one of joblib's
            return self._run(composed)

    def _run(self, composed: DictConfig) -> int:
        from hydra.core.hydra_config import HydraConfig
        from hydra.types import RunMode
        from omegaconf import OmegaConf

        from bnrecon.cli.sweeps import record_job

        hydra = HydraConfig.get()
        # As they are written: an interpolation may lead nowhere, which is to be reported.
        task = OmegaConf.to_container(hydra.overrides.task, resolve=False)
        overrides = cast("list[str]", task)
        sweeping = hydra.mode == RunMode.MULTIRUN
        record: dict[str, Any] = {"overrides": overrides, "folder": None, "code": exit_codes.DONE}
        with output.log_to_stderr(self.level):
            if sweeping:
                logger.info("\n[%s] %s", hydra.job.num, " ".join(overrides))
            try:
                record["folder"] = str(_do_run(composed))
            except BaseException as error:
                record["code"] = exit_codes.report(error)
                record["error"] = exit_codes.summarize(error)
        if sweeping:
            record_job(Path(hydra.sweep.dir), hydra.job.num, record)
        if record["code"] and (not sweeping or record["code"] == exit_codes.INTERRUPTED):
            raise SystemExit(record["code"])
        return record["code"]


def _do_run(composed: DictConfig) -> Path:
    """Do the main job, print its table, return its folder."""
    from bnrecon.config import composition

    config = composition.from_hydra(composed)
    _load_libraries(config)
    from bnrecon.config import checks
    from bnrecon.run import main_job

    main_job.check_names(config)
    checks.require_folder("outputs", config.outputs)
    if config.targets is not None:
        checks.require_folder("targets", config.targets)
    finished = main_job.run(config)
    output.write(finished.text())
    return finished.folder


def _train(given: argparse.Namespace) -> int:
    """Train a target alone, or take the trained one, and print how good it is."""
    if given.help:
        return _help(given)
    _refuse_launchers(given.options, "launchers run sweeps, with bnrecon run -m")
    from bnrecon.config import checks, composition

    config = composition.compose(given.options)
    _load_libraries(config)
    from bnrecon.run import main_job

    name, folder = ("targets", config.targets) if config.targets else ("outputs", config.outputs)
    checks.require_folder(name, folder)
    if text := main_job.train_only(config).text():  # empty in all processes but the first
        output.write(text)
    return exit_codes.DONE


def _load_libraries(config: RunConfig) -> None:
    """Import the user's modules and what takes seconds; then an interruption is an exception."""
    for name in config.imports:
        import_user_module(name)
    import bnrecon.run.main_job  # noqa: F401 (for its libraries)
    from bnrecon.runtime.interruption import finish_loading

    finish_loading()
