"""What jobs say of their work: a small file when they begin with a piece, another at its end."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
from collections.abc import Iterable
from pathlib import Path

from bnrecon.reproduction.outcome import Outcome
from bnrecon.runtime import files
from bnrecon.runtime.digests import content_key

__all__ = ["Reports", "utc"]


class Reports:
    """The files of a submission's folder. A result counts only if it is stored where it belongs.

    Args:
        folder: the submission's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, key: str) -> None:
        """A job begins with a piece of work."""
        files.write_json(self._file("started", key), {"key": key, "since": utc()})

    def end(self, outcome: Outcome) -> None:
        """A piece of work has ended."""
        files.write_json(self._file("outcomes", outcome.key), dataclasses.asdict(outcome))

    def tell(self, key: str) -> None:
        """The user was told that this failed; the next command tries it again."""
        files.write_json(self._file("told", key), {"key": key})

    def outcome(self, key: str) -> Outcome | None:
        """What became of a piece of work, once a job has said so."""
        path = self._file("outcomes", key)
        try:
            return Outcome(**files.read_json(path))
        except FileNotFoundError:
            return None
        except (files.Damaged, TypeError) as error:
            return Outcome(key, key, "failed", f"{path} is damaged ({error})", 0.0, str(path))

    def started(self, keys: Iterable[str]) -> set[str]:
        """Those that a job has begun with."""
        return self._among("started", keys)

    def ended(self, keys: Iterable[str]) -> set[str]:
        """Those that a job has reported the end of."""
        return self._among("outcomes", keys)

    def told(self, keys: Iterable[str]) -> set[str]:
        """Those of which the user was told that they failed."""
        return self._among("told", keys)

    def _among(self, kind: str, keys: Iterable[str]) -> set[str]:
        """One look at a folder, in place of one at each file."""
        with contextlib.suppress(OSError):
            there = {path.name for path in (self._folder / kind).iterdir()}
            return {key for key in keys if self._file(kind, key).name in there}
        return set()

    def _file(self, kind: str, key: str) -> Path:
        # A key may itself be as long as a file's name can be.
        return self._folder / kind / f"{content_key({'key': key})}.json"


def utc() -> str:
    """The time now, in ISO 8601."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
