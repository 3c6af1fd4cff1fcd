"""A sweep: one process at a time works on it, and one table shows all its runs."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig

from bnrecon.runtime.interruption import finish_loading

__all__ = ["Sweep", "SweepCallback", "SweepOutcome", "record_job", "watch"]


@dataclass(frozen=True)
class SweepOutcome:
    """What a finished sweep gives: the worst exit code, the runs' table, what went wrong."""

    code: int
    table: str | None
    problems: list[str]


@dataclass
class Sweep:
    """The sweep of a ``watch`` block. ``folder`` is ``None`` until Hydra starts a sweep."""

    folder: Path | None = None
    launcher: str = ""
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
        self._made = [place for place in (folder, *folder.parents) if not place.exists()]
        self._held.enter_context(locks.lock_folder(folder, f"the sweep {folder.name}"))
        self.folder = folder
        for file in folder.glob("job-*.json"):
            file.unlink()

    def finish(self) -> SweepOutcome:
        """Write the table of all jobs that have a readable record and result; name the others."""
        from bnrecon.reporting import run_tables
        from bnrecon.reporting.result import RunResult
        from bnrecon.runtime import files

        assert self.folder is not None, "no sweep was started"
        records, results, problems = [], [], []
        for file in self._record_files():
            try:
                records.append(files.read_json(file))
                if (folder := records[-1]["folder"]) is not None:
                    results.append(RunResult.read(Path(folder) / "result.json"))
            except FileNotFoundError as error:
                problems.append(f"left out: job {_number(file)}: {error.filename} is missing")
            except (ValueError, OSError) as error:
                problems.append(f"left out: job {_number(file)}: {error}")
        code = max([*(record["code"] for record in records), bool(problems)])
        problems += [
            f"failed (exit code {record['code']}): {' '.join(record['overrides'])}"
            for record in records
            if record["code"]
        ]
        table = run_tables.markdown(results) if results else None
        if table is not None:
            files.write_text(self.folder / "table.md", table + "\n")
        return SweepOutcome(code, table, problems)

    def _record_files(self) -> list[Path]:
        """The records of jobs 0, 1, ... up to the last one found, missing ones included."""
        assert self.folder is not None
        last = max(map(_number, self.folder.glob("job-*[0-9].json")), default=0)
        return [self.folder / f"job-{number}.json" for number in range(last + 1)]

    def release(self) -> None:
        """Release the lock; if no job ended, remove the folders that were made for the sweep."""
        if self._made and not any(self._made[0].glob("job-*.json")):
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
        if self.launcher == "submitit_slurm":
            return "; submitted jobs go on: squeue --me lists them, scancel JOB ends one"
        if self.launcher == "submitit_local":
            return "; submitted jobs go on as processes of their own: kill PID ends one"
        return ""


def _number(file: Path) -> int:
    return int(re.sub(r"\D", "", file.stem))


def record_job(folder: Path, number: int, record: dict[str, Any]) -> None:
    """Write one job's record, from whichever process the launcher ran it in."""
    from bnrecon.runtime import files

    files.write_json(folder / f"job-{number}.json", record)


_current: ContextVar[Sweep | None] = ContextVar("_current", default=None)


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
