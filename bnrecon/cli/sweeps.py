"""A sweep: runs that a command's processes or a cluster's jobs compute, and their table."""

from __future__ import annotations

import argparse
import contextlib
import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from bnrecon.cli import exit_codes, hydra_app, output
from bnrecon.cli.parser import Parser
from bnrecon.config import checks, composition
from bnrecon.jobs import executors
from bnrecon.jobs import options as job_options
from bnrecon.jobs.computation import InProcess
from bnrecon.jobs.options import JobOptions
from bnrecon.jobs.work import SWEEP, Batch, Detached, Outcome, Work
from bnrecon.reporting import run_tables
from bnrecon.reproduction import progress
from bnrecon.reproduction.engine import collect_finished, compute
from bnrecon.reproduction.work import RunWork, with_targets
from bnrecon.run import main_job, preparation
from bnrecon.runtime import extras, files, hardware
from bnrecon.runtime.errors import RunError, UserError, shorten
from bnrecon.runtime.interruption import finish_loading
from bnrecon.runtime.user_code import WithUserModules, import_user_modules

logger = logging.getLogger(__name__)

CODES = {"done": exit_codes.DONE, "mistake": exit_codes.MISTAKE, "failed": exit_codes.FAILED}


class SweepRun(WithUserModules, RunWork):
    """A run of a sweep, which prints its table; its label has the options that vary."""

    @property
    def label(self) -> str:
        """The options that distinguish the run from the others."""
        return self.labels["options"]

    @property
    def _paths(self) -> tuple[Path, ...]:
        """The run's folder only: shipped results belong to studies."""
        return (self.folder / "result.json",)

    def compute(self) -> str:
        """Do the main job, and print its table."""
        finished = main_job.run(self.config)
        with contextlib.suppress(OSError):  # the result is stored; the sweep's table is the output
            output.write(finished.text())
        return f"loss {finished.result.loss}"


def run_sweep(plan: hydra_app.Plan, options: JobOptions, arguments: argparse.Namespace) -> int:
    """Compute the missing runs of a sweep, print the table of all; return the worst exit code.

    A failed run does not stop the others. Cluster jobs plan again from ``arguments``.

    Raises:
        UserError: an option is not possible; nothing is computed.
        Interrupted: the sweep was stopped; finished runs are kept.
    """
    runs, folder = _runs(plan), Path(plan.folder)
    words = (*hydra_app.flags(arguments), *arguments.words)
    command = shlex.join(["bnrecon", "run", *words, *options.words])
    batch = Batch(folder, SWEEP, command, f"{__name__}:plan_again", words)
    chosen = "hydra.sweep.dir" in hydra_app.option_names(arguments.words)
    checks.require_folder("hydra.sweep.dir" if chosen else "outputs", plan.folder)
    if chosen and (folder / "table.md").exists() and not _was_computed_there(batch):
        raise UserError(
            f"hydra.sweep.dir={folder}: has a table.md that is not this sweep's; "
            "give another folder"
        )
    sweeps = Path(runs[0].config.outputs) / "sweeps"
    if options.cluster is not None and folder.parent != sweeps:
        raise UserError(
            f"hydra.sweep.dir={folder}: with cluster=, give a folder in {sweeps}, where bnrecon "
            "status and bnrecon cancel look for jobs"
        )
    finish_loading()
    _refuse_shared_folders(runs)
    missing = {run.key: run for run in runs if not run.is_finished()}
    if len(missing) < len(runs):
        logger.info("%d of %d runs are done already", len(runs) - len(missing), len(runs))
    failures: list[Outcome] = []
    if not missing:
        collect_finished(batch, runs)
        if not batch.progress.exists():  # it marks the folder as a sweep's
            with progress.keep(batch, InProcess(batch.locks_folder, None), []):
                pass
    else:
        device = _check_machine(list(missing.values()), options)
        executor = executors.choose(options, batch, device, {}, show=True)
        alone = executor.processes == 1  # then each run's progress is shown
        if not alone:
            details = batch.details(executor.processes)
            logger.info("%d of the runs to compute; details go to %s", len(missing), details)
        try:
            failures = compute(missing, executor, batch, show=not alone)
        except Detached as detached:
            output.write(f"{detached}\n\n{folder}")
            return exit_codes.DONE
    return _finish(runs, failures, folder)


def _runs(plan: hydra_app.Plan) -> list[SweepRun]:
    """The runs, with their options checked."""
    if len({word for words, _ in plan.runs for word in words if word.startswith("outputs=")}) > 1:
        raise UserError("outputs: all runs of a sweep need the same, which holds the sweep's table")
    common = set.intersection(*(set(words) for words, _ in plan.runs))
    configs = [composition.from_hydra(composed) for _, composed in plan.runs]
    if any(config.imports != configs[0].imports for config in configs):
        raise UserError(
            "imports: all runs of a sweep need the same modules, of which the last to register a "
            "name counts; sweep over names that one list registers"
        )
    import_user_modules(configs[0].imports)
    runs = []
    for (words, _), config in zip(plan.runs, configs, strict=True):
        label = " ".join(word for word in words if word not in common) or " ".join(words)
        runs.append(SweepRun("runs", {"options": label}, tuple(words), config))
        checks.require_folders(config)
    for run in runs:
        preparation.check_names(run.config)
    return runs


def _was_computed_there(batch: Batch) -> bool:
    """Whether the batch's folder is of the same options, however they were computed."""
    try:
        earlier = shlex.split(progress.read(batch.progress).command)[2:]  # after bnrecon run
    except (FileNotFoundError, files.Damaged):
        return False
    return sorted(job_options.split(earlier, job_options.OPTIONS)[2]) == sorted(batch.words)


def _refuse_shared_folders(runs: Sequence[SweepRun]) -> None:
    """Raise ``UserError`` if rows would be one run: some options do not change its folder."""
    first: dict[Path, SweepRun] = {}
    for run in runs:
        other = first.setdefault(run.folder, run)
        if other.config != run.config:
            words = set(run.overrides) ^ set(other.overrides)
            names = sorted({word.partition("=")[0] for word in words})
            raise UserError(
                f"{shorten(names)}: does not change the folder of a run, so rows of the sweep "
                "would be one run; give each value its own command, with its own outputs= folder"
            )


def plan_again(words: Sequence[str]) -> Mapping[str, Work]:
    """All runs of a sweep and their targets by key, for a job that computes some of them."""
    parser = Parser()
    hydra_app.add_flags(parser)
    parser.add_argument("words", nargs="*")
    return with_targets(_runs(hydra_app.plan(parser.read(words))))


def _check_machine(runs: Sequence[SweepRun], options: JobOptions) -> torch.device | None:
    """This machine's device, a GPU if any run uses one; ``None`` if Slurm's jobs compute."""
    extras.require_trackers(sorted({name for run in runs for name in run.config.tracker}))
    if options.cluster is not None and options.cluster.name == "slurm":
        return None
    names = sorted({run.config.device for run in runs})
    devices = [hardware.resolve_device(name) for name in names]
    return next((device for device in devices if device.type == "cuda"), devices[0])


def _finish(runs: Sequence[SweepRun], failures: Sequence[Outcome], folder: Path) -> int:
    """Print the table of all finished runs, the folder, and the failures."""
    labelled = [(run.label, result) for run in runs if (result := run.result()) is not None]
    labels, results = [label for label, _ in labelled], [result for _, result in labelled]
    if results:
        try:
            output.write(f"\n{run_tables.terminal(results, labels)}")
        finally:  # a closed pipe does not lose the file, nor a full disk what is printed
            files.write_text(folder / "table.md", run_tables.markdown(results, labels) + "\n")
    for failure in failures:
        log = f"; log: {failure.log}" if failure.log else ""
        code = CODES[failure.kind]
        logger.warning("failed (exit code %d): %s: %s%s", code, failure.label, failure.gist, log)
    output.write(f"\n{folder}")
    if not failures and len(results) < len(runs):
        raise RunError(
            f"{len(runs) - len(results)} of {len(runs)} results are missing: they were "
            "removed, or the code or the images changed meanwhile"
        )
    return max((CODES[failure.kind] for failure in failures), default=exit_codes.DONE)
