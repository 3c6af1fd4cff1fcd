"""Sweeps: one process at a time at each, and one table of all runs, whichever launcher ran them."""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path

from bnrecon.runtime.interruption import loaded

__all__ = ["SweepTable", "end_workers", "outcome", "release"]


outcome: list[int] = []  # the exit code of the job or the sweep that ran in this process


# Of this process and not of the callback, which launchers copy into others: the sweep's lock, the
# folders made for it, its launcher.
_held = contextlib.ExitStack()


_made: list[Path] = []


_launcher: list[str] = []


class SweepTable:
    """A Hydra callback. It fails by ``SystemExit(error)``: of other exceptions Hydra makes warnings."""

    def on_multirun_start(self, config, **_: object) -> None:
        """Wait for another process at the same sweep; then forget what an earlier one left."""
        from bnrecon.config.checks import require_folder
        from bnrecon.runtime import locks

        loaded()  # jobs may run in other processes, and this one only waits for them
        _launcher[:] = [config.hydra.runtime.choices["hydra/launcher"]]
        try:
            folder = Path(config.hydra.sweep.dir)
            require_folder("outputs", config.outputs)
            require_folder("hydra.sweep.dir", config.hydra.sweep.dir)
            _made[:] = [place for place in (folder, *folder.parents) if not place.exists()]
            _held.enter_context(locks.exclusive(folder, f"the sweep {folder.name}"))
            for file in folder.glob("job-*.json"):
                file.unlink()
        except Exception as error:
            raise SystemExit(error) from None

    def on_multirun_end(self, config, **_: object) -> None:
        """Write and print the table of all jobs with a readable record; name the others."""
        from bnrecon.reporting import tables
        from bnrecon.runtime import files

        folder = Path(config.hydra.sweep.dir)
        records, results, lost = [], [], []
        found = {int(re.sub(r"\D", "", file.stem)): file for file in folder.glob("job-*[0-9].json")}
        for number in range(max(found, default=0) + 1):
            file = found.get(number, folder / f"job-{number}.json")
            try:
                records.append(files.read_json(file))
                if records[-1]["folder"]:
                    results.append(files.read_json(Path(records[-1]["folder"]) / "result.json"))
            except (ValueError, OSError) as error:
                missing = isinstance(error, FileNotFoundError)
                lost.append(
                    f"left out: job {number}: {f'{error.filename} is missing' if missing else error}"
                )
        outcome[:] = [max([*(record["code"] for record in records), bool(lost)])]
        try:
            if results:
                table = tables.markdown(tables.summary(results))
                files.write_text(folder / "table.md", table + "\n")
                print(f"\n{table}")
        except Exception as error:
            raise SystemExit(error) from None
        lost += [
            f"failed (exit code {record['code']}): {' '.join(record['overrides'])}"
            for record in records
            if record["code"]
        ]
        print("".join(f"{line}\n" for line in lost), end="", file=sys.stderr)
        print(f"\n{folder}")

    def __getattr__(self, name: str):
        if name.startswith("on_"):
            return lambda *_, **__: None
        raise AttributeError(name)


def release() -> None:
    """Let the sweep go; where no job came to an end, remove the folders that were made for it."""
    if _made and not any(_made[0].glob("job-*.json")):
        with contextlib.suppress(OSError):  # a folder that something lies in stays
            for name in ("multirun.yaml", ".holder", ".lock"):
                (_made[0] / name).unlink(missing_ok=True)
            for place in _made:
                place.rmdir()
    _made.clear()
    _launcher.clear()
    _held.close()


def end_workers() -> str:
    """After an interruption: end joblib's processes; return what to say of jobs that go on."""
    loky = sys.modules.get("joblib.externals.loky.reusable_executor")
    if loky is not None and loky._executor is not None:
        loky._executor.shutdown(wait=True, kill_workers=True)
    if _launcher == ["submitit_slurm"]:
        return "; jobs that were submitted go on: squeue --me lists them, scancel JOB ends one"
    if _launcher == ["submitit_local"]:
        return "; jobs that were submitted go on as processes of their own: kill PID ends one"
    return ""
