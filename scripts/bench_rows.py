"""Rows of measurements: each in a process of its own, and kept in a file, so as to be made once.

A script that measures starts itself with ``--row`` and the row as JSON, and then prints what it
measured, as JSON, in its last line.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["in_process", "measure_missing", "memory_status"]


def in_process(script: str, row: object, threads: int | None = None) -> dict:
    """Measure a row in a process of its own, on so many threads.

    Raises:
        subprocess.CalledProcessError: the process failed.
    """
    environment = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, script, "--row", json.dumps(row)],
        env=os.environ | environment,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def measure_missing(
    path: Path | None,
    wanted: Iterable[dict],
    measure: Callable[[dict], dict],
    fresh: bool = False,
) -> list[dict]:
    """Measure the rows that a file lacks; return all of its rows, and keep each once it is there.

    Args:
        path: the file; none keeps nothing.
        wanted: for each row what it is known by, as ``{"size": 16, "threads": 1}``.
        measure: measures a row; what it returns is added to what the row is known by, with the
            commit and the day.
        fresh: whether to measure the wanted rows that the file has again, in their place.

    A row that only has a note, on why it was not measured, is tried again. One whose process fails
    is told of and left out.
    """
    from bnrecon.runtime import files

    rows = [] if path is None else _read_rows(path)
    for about in wanted:
        same = [row for row in rows if about.items() <= row.items()]
        if same and not fresh and not any("note" in r and "seconds" not in r for r in same):
            continue
        try:
            found = about | measure(about) | _provenance()
        except subprocess.CalledProcessError as error:
            name = " ".join(map(str, about.values()))
            print(f"{name}: failed with exit code {error.returncode}", file=sys.stderr, flush=True)
            continue
        rows = [row for row in rows if row not in same] + [found]
        if path is not None:
            files.write_json(path, {"rows": rows})
    return rows


def _provenance() -> dict:
    """What code measured a row, and on which day."""
    from bnrecon.runtime import provenance

    return {"commit": provenance.commit(), "date": datetime.date.today().isoformat()}


def _read_rows(path: Path) -> list[dict]:
    """The rows that were measured before; a damaged file is set aside."""
    from bnrecon.runtime import files

    if not path.exists():
        return []
    try:
        return files.read_json(path)["rows"]
    except ValueError as error:
        files.quarantine(path, error)
        return []


def memory_status(name: str) -> int:
    """A number of bytes that Linux tells about this process, as ``VmHWM``."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {name} in /proc/self/status")
