"""Rows of measurements: each in a process of its own, and kept in a file, so as to be made once.

A script that measures starts itself with ``--row`` and the row as JSON, and then prints what it
measured, as JSON, in its last line.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

__all__ = ["in_process", "memory_status", "read_rows"]


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


def read_rows(path: Path) -> list[dict]:
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
