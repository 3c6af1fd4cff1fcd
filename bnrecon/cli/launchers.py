"""Sweeps through submitit: jobs of Slurm, or processes of this machine that outlive the command.

Hydra's launchers for submitit give up at the first job that fails. These take the same options and
submit the same jobs, tell their numbers, and wait until every one has ended, however it ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig

from bnrecon.cli import launcher_options, submitted_jobs, sweeps
from bnrecon.runtime import interruption
from bnrecon.runtime.environment import environment
from bnrecon.runtime.errors import RunError, UserError

if TYPE_CHECKING:
    import submitit

__all__ = ["LocalLauncher", "SlurmLauncher", "prepare"]

logger = logging.getLogger(__name__)


class _Launcher(Launcher):
    """Submits the jobs of a sweep and waits for all of them.

    The plugin's own launcher, which is held, runs a job once its process has started.
    """

    cluster: str  # submitit's name of it
    place: str

    def __init__(self, **params: Any) -> None:
        from hydra_plugins.hydra_submitit_launcher import submitit_launcher

        self._plugin = getattr(submitit_launcher, f"{self.cluster.title()}Launcher")(**params)
        self.params = self._plugin.params

    def setup(self, **given: Any) -> None:
        """Take up the configuration of the sweep."""
        self._plugin.setup(**given)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> list[JobReturn]:
        """Submit jobs, which are numbered from ``initial_job_idx``, and wait for their ends."""
        sweep = sweeps.current()
        wanted = dict(enumerate(map(list, job_overrides), initial_job_idx))
        if wanted.keys() <= sweep.submitted.keys():
            logger.info("an earlier command submitted these jobs; waiting for them")
        else:
            with interruption.StopRequest():  # an interruption that comes in between is kept
                sweep.submitted |= self._submit(wanted)
                if self.cluster == "slurm":
                    submitted_jobs.remember(sweep)
        self._announce(sweep)
        submitted_jobs.wait_for(sweep, wanted)
        return [JobReturn(status=JobStatus.COMPLETED, overrides=each) for each in wanted.values()]

    def _submit(self, wanted: dict[int, list[str]]) -> dict[int, submitit.Job]:
        jobs = [
            (overrides, "hydra.sweep.dir", number, f"job_{number}", Singleton.get_state())
            for number, overrides in wanted.items()
        ]
        with (
            _one_line(self.place),
            environment(PYTHONSAFEPATH="1"),  # the current folder's modules are not on their path
            _streams_of_jobs(self.cluster == "local"),
        ):
            submitted = self._executor().map_array(self, *zip(*jobs, strict=True))
        return dict(zip(wanted, submitted, strict=True))

    def _executor(self) -> submitit.AutoExecutor:
        """The plugin's way from ``hydra.launcher`` to submitit's parameters."""
        import submitit
        from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

        cluster, params = self.cluster, dict(self.params)
        folder, most = params.pop("submitit_folder"), params.pop("max_num_timeout", None)
        limits = {} if most is None else {f"{cluster}_max_num_timeout": most}
        executor = submitit.AutoExecutor(folder=folder, cluster=cluster, **limits)
        if cluster == "slurm" and params["cpus_per_task"]:  # srun is not told by sbatch
            params["srun_args"] = [f"--cpus-per-task={params['cpus_per_task']}"]
        shared = {field.name for field in dataclasses.fields(BaseQueueConf)}
        executor.update_parameters(
            **{
                name if name in shared else f"{cluster}_{name}": value
                for name, value in params.items()
            }
        )
        return executor

    def _announce(self, sweep: sweeps.Sweep) -> None:
        jobs = list(sweep.submitted.values())
        logs, cancel = os.path.relpath(jobs[0].paths.folder), sweep.how_to_cancel()
        numbers = " ".join(job.job_id for job in jobs)
        if len(jobs) > 20:
            numbers = f"{jobs[0].job_id} to {jobs[-1].job_id}"
        count = f"{len(jobs)} job{'s' if len(jobs) > 1 else ''}"
        logger.info("%s of %s, named %s: %s", count, self.place, self.params["name"], numbers)
        logger.info("logs: %s; to cancel: %s", logs, cancel)

    def __call__(self, *arguments: Any) -> JobReturn:
        """Run one job, in its own process; before its time limit have submitit queue it again.

        submitit's handler ends the process wherever it is. Here the signal is handled as Ctrl-C
        is: libraries are loaded to the end, and training is saved first.
        """
        queue_again = signal.getsignal(signal.SIGUSR2)
        try:
            with interruption.handle_signals(postpone=True):
                done: JobReturn = self._plugin(*arguments)
        except (SystemExit, KeyboardInterrupt):
            if interruption.received_signal() == signal.SIGUSR2 and callable(queue_again):
                queue_again(signal.SIGUSR2, None)  # ends this process
            raise
        if done.return_value:  # a failed run is a failed job, to Slurm too
            raise SystemExit(done.return_value)
        return done

    def checkpoint(self, *arguments: Any) -> submitit.helpers.DelayedSubmission:
        """What submitit queues again: the same job, which goes on with what is saved."""
        import submitit

        return submitit.helpers.DelayedSubmission(self, *arguments)


class LocalLauncher(_Launcher):
    """``hydra/launcher=submitit_local``."""

    cluster = "local"
    place = "this machine"


class SlurmLauncher(_Launcher):
    """``hydra/launcher=submitit_slurm``."""

    cluster = "slurm"
    place = "Slurm"


def prepare(config: DictConfig) -> None:
    """Have Hydra take the launchers above, with values that suit runs that resume."""
    name = config.hydra.launcher._target_
    local = name.endswith(".LocalLauncher")
    launcher_options.set_options(config, local)
    Plugins.instance().class_name_to_class[name] = LocalLauncher if local else SlurmLauncher


@contextlib.contextmanager
def _one_line(place: str) -> Iterator[None]:
    """Say in one line why jobs could not be submitted."""
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    try:
        with contextlib.redirect_stderr(io.StringIO()):  # submitit prints what it then raises
            yield
    except (FailedJobError, FailedSubmissionError) as error:
        raise RunError(f"{place} refused the jobs: {_join(error)}") from None
    except (AssertionError, NameError, RuntimeError, ValueError) as error:
        raise UserError(f"{place} cannot take these jobs: {_join(error)}") from None


def _join(error: Exception) -> str:
    return "; ".join(line.strip() for line in str(error).splitlines() if line.strip())


@contextlib.contextmanager
def _streams_of_jobs(local: bool) -> Iterator[None]:
    """Keep from local jobs the streams of this process, whose readers would wait for their ends."""
    with contextlib.ExitStack() as stack:
        for stream in (0, 1, 2) if local else ():
            with (
                contextlib.suppress(OSError),
                open(os.devnull, "r+b") as nowhere,
            ):
                before = os.dup(stream)
                stack.callback(os.close, before)
                stack.callback(os.dup2, before, stream)
                os.dup2(nowhere.fileno(), stream)
        yield
