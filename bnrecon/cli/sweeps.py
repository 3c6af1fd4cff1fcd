"""A sweep: one process at a time works on it, and one table shows all its runs."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from bnrecon.runtime.errors import UserError
from bnrecon.runtime.interruption import finish_loading

if TYPE_CHECKING:
    import submitit

__all__ = ["Sweep", "SweepCallback", "SweepOutcome", "current", "record_job", "watch"]


SUBMITTED = ("submitit_local", "submitit_slurm")  # launchers whose jobs outlive this process


@dataclass(frozen=True)
class SweepOutcome:
    """What a finished sweep gives: the worst exit code, the runs' table, what went wrong."""

    code: int
    table: str | None
    problems: list[str]


@dataclass
class Sweep:
    """The sweep of a ``watch`` block. ``folder`` is ``None`` until Hydra starts a sweep.

    ``jobs`` are the overrides of each job, and ``submitted`` the jobs that submitit runs.
    """

    folder: Path | None = None
    launcher: str = ""
    jobs: list[list[str]] = field(default_factory=list)
    submitted: dict[int, submitit.Job] = field(default_factory=dict)
    _made: list[Path] = field(default_factory=list)
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def start(self, config: DictConfig) -> None:
        """Wait for another process at the same sweep, then remove an earlier one's records."""
        from bnrecon.config.checks import require_folder
        from bnrecon.runtime import locks

        finish_loading()  # jobs may run in other processes, and this one only waits for them
        self.launcher = config.hydra.runtime.choices["hydra/launcher"]
        folder = Path(config.hydra.sweep.dir)
        require_folder("outputs", config.outputs)
        require_folder("hydra.sweep.dir", config.hydra.sweep.dir)
        _refuse_other_files(folder)
        self._made = [place for place in (folder, *folder.parents) if not place.exists()]
        self._held.enter_context(locks.lock_folder(folder, f"the sweep {folder.name}", shared=True))
        self.folder, self.jobs = folder, _jobs(config)
        if len({word for job in self.jobs for word in job if word.startswith("outputs=")}) > 1:
            raise UserError("outputs: all jobs of a sweep have one, with the sweep's table in it")
        if self.launcher in SUBMITTED:
            from bnrecon.cli import launchers, submitted_jobs

            launchers.prepare(config)
            if self.launcher == "submitit_slurm":
                self.submitted = submitted_jobs.find(folder)
        if not self.submitted:
            for file in _records(folder):
                file.unlink()

    def has_records(self) -> bool:
        """Whether any job has ended."""
        return self.folder is not None and bool(_records(self.folder))

    def has_record(self, number: int) -> bool:
        """Whether a job has ended by itself; one that a signal stopped may be queued again."""
        from bnrecon.cli.exit_codes import INTERRUPTED
        from bnrecon.runtime import files

        assert self.folder is not None
        try:
            return files.read_json(self.folder / f"job-{number}.json")["code"] != INTERRUPTED
        except (OSError, ValueError):
            return False

    def finish(self) -> SweepOutcome:
        """Write the table of all jobs that have a readable record and result; name the others."""
        from bnrecon.reporting import run_tables
        from bnrecon.reporting.result import RunResult
        from bnrecon.runtime import files

        assert self.folder is not None, "no sweep was started"
        codes, results, problems = [], [], []
        for number, file in enumerate(self._record_files()):
            try:
                record = files.read_json(file)
                codes.append(record["code"])
                if record["folder"] is not None:
                    results.append(RunResult.read(Path(record["folder"]) / "result.json"))
                else:
                    problems.append(self._failure(number, record))
            except FileNotFoundError as error:
                problems.append(self._missing(number, error))
            except (ValueError, OSError) as error:
                problems.append(f"left out: job {number}: {error}")
        table = run_tables.markdown(results) if results else None
        if table is not None:
            files.write_text(self.folder / "table.md", table + "\n")
        return SweepOutcome(max([*codes, bool(problems)]), table, problems)

    def _record_files(self) -> list[Path]:
        """The records of all jobs, missing ones included."""
        assert self.folder is not None
        last = max(map(_number, self.folder.glob("job-*[0-9].json")), default=0)
        count = max(last + 1, len(self.jobs))
        return [self.folder / f"job-{number}.json" for number in range(count)]

    def _missing(self, number: int, error: FileNotFoundError) -> str:
        if number < len(self.jobs) and not self.submitted:
            return f"did not end: {' '.join(self.jobs[number])}"
        return f"left out: job {number}: {error.filename} is missing"

    def _failure(self, number: int, record: dict[str, Any]) -> str:
        """One line on a job that failed: its options, why, and where its log is."""
        job = self.submitted.get(number)
        where = f" (job {job.job_id})" if job else ""
        line = f"failed (exit code {record['code']}): {' '.join(record['overrides'])}{where}"
        if record.get("error"):
            line += f": {record['error']}"
        if job and job.paths.stdout.exists():
            line += f"; log: {os.path.relpath(job.paths.stdout)}"
        return line

    def release(self) -> None:
        """Release the lock; if no job began, remove the folders that were made for the sweep."""
        if self._made and not self.submitted and not any(self._made[0].glob("job-*.json")):
            with contextlib.suppress(OSError):  # a folder that holds something stays
                for name in ("multirun.yaml", ".holder", ".lock"):
                    (self._made[0] / name).unlink(missing_ok=True)
                for place in self._made:
                    place.rmdir()
        self._made.clear()
        self._held.close()

    def end_workers(self) -> str:
        """After an interruption: end joblib's processes; return a note on jobs that go on."""
        loky = sys.modules.get("joblib.externals.loky.reusable_executor")
        if loky is not None and loky._executor is not None:
            loky._executor.shutdown(wait=True, kill_workers=True)
        if not self.submitted:
            return ""
        from bnrecon.cli import submitted_jobs

        time.sleep(2)  # Ctrl-C in a terminal ends processes of this machine too
        found = submitted_jobs.running(self.submitted, self.launcher == "submitit_slurm")
        if not found:
            return ""
        numbers = " ".join(self.submitted[number].job_id for number in sorted(found))
        return f"; submitted jobs go on: {numbers}; to cancel them: {self.how_to_cancel()}"

    def how_to_cancel(self) -> str:
        """The command that cancels all submitted jobs."""
        slurm = self.launcher == "submitit_slurm"  # whose arrays have one number
        numbers = {job.job_id.partition("_")[0]: None for job in self.submitted.values()}
        return " ".join(["scancel" if slurm else "kill", *numbers])


def _records(folder: Path) -> list[Path]:
    return [file for file in folder.glob("job-*.json") if re.fullmatch(r"job-\d+\.json", file.name)]


def _refuse_other_files(folder: Path) -> None:
    """Raise ``UserError`` where records and the table would replace files of no sweep."""
    own = (folder / "multirun.yaml").exists() or (folder / "jobs").exists()
    if not own and (_records(folder) or (folder / "table.md").exists()):
        raise UserError(
            f"hydra.sweep.dir={folder}: has files named as those of a sweep, and is none; give "
            "another folder"
        )


def _jobs(config: DictConfig) -> list[list[str]]:
    """The overrides of each job, where Hydra's own sweeper makes the jobs."""
    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
    from hydra.core.override_parser.overrides_parser import OverridesParser

    if config.hydra.runtime.choices["hydra/sweeper"] != "basic" or config.hydra.sweeper.params:
        return []
    parsed = OverridesParser.create().parse_overrides(list(config.hydra.overrides.task))
    return BasicSweeper.split_arguments(parsed, None)[0]


def _number(file: Path) -> int:
    return int(re.sub(r"\D", "", file.stem))


def record_job(folder: Path, number: int, record: dict[str, Any]) -> None:
    """Write one job's record, from whichever process the launcher ran it in."""
    from bnrecon.runtime import files

    files.write_json(folder / f"job-{number}.json", record)


_current: ContextVar[Sweep | None] = ContextVar("_current", default=None)


def current() -> Sweep:
    """The sweep of the current ``watch`` block."""
    sweep = _current.get()
    assert sweep is not None, "no command watches this sweep"
    return sweep


@contextlib.contextmanager
def watch() -> Iterator[Sweep]:
    """Tell of the sweep that Hydra starts within the block, if it starts one; release it then."""
    sweep = Sweep()
    token = _current.set(sweep)
    try:
        yield sweep
    finally:
        _current.reset(token)
        sweep.release()


class SweepCallback(Callback):
    """Tells the current ``watch`` block that Hydra starts a sweep.

    It fails by ``SystemExit(error)``: Hydra turns other exceptions of a callback into warnings.
    """

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Start the sweep."""
        if (sweep := _current.get()) is not None:
            try:
                sweep.start(config)
            except Exception as error:
                raise SystemExit(error) from None
