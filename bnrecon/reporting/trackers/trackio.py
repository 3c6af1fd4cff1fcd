"""trackio: a local database for each project, which ``trackio show`` opens in a browser."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

from bnrecon.runtime.environment import environment
from bnrecon.runtime.tracking import Plain, Values

__all__ = ["Trackio"]

VARIABLE = "TRACKIO_DIR"


class Trackio:
    """Writes to ``FOLDER/trackio``, or to the folder that ``TRACKIO_DIR`` names.

    trackio writes from a thread, of which only the end can be waited for: what is logged is
    therefore handed over in a session of its own that is opened and finished at once.

    Args:
        folder: of all trackers.
        project: trackio's project.
    """

    name = "trackio"
    pause = 5.0  # a session takes a tenth of a second or two
    lag = 0.0

    def __init__(self, folder: Path, project: str) -> None:
        self.folder = Path(os.environ.get(VARIABLE) or folder / self.name).absolute()
        self.project = project

    @property
    def view(self) -> str:
        """The command that shows what was written."""
        folder, project = shlex.quote(str(self.folder)), shlex.quote(self.project)
        return f"{VARIABLE}={folder} trackio show --project {project}"

    def record(self, run: str) -> Path:
        """Beside trackio's database."""
        return self.folder / "sent" / self.project / f"{run}.txt"

    def start(self, run: str, config: Mapping[str, Plain], before: int) -> None:  # noqa: ARG002 (trackio looks itself)
        """Remember the run; trackio is opened when there is something to write."""
        self._run, self._config = run, dict(config)
        self._waiting: list[tuple[int, Values]] = []

    def log(self, kind: str, step: int, values: Values) -> None:  # noqa: ARG002 (a tag says it)
        """Take numbers, for the next session."""
        self._waiting.append((step, values))

    def result(self, values: Values) -> None:
        """Take the last numbers; trackio shows them as points."""
        self._waiting.append((0, values))

    def flush(self) -> None:
        """Write what waits, in one session.

        Raises:
            RuntimeError: trackio warns of something; it raises nothing itself when it loses data.
        """
        group, name = self._run.split("/", 1)
        with _quiet() as said:
            trackio = _import(self.folder)
            run = trackio.init(
                project=self.project,
                name=name,
                group=group,
                config=self._config,
                resume="allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
            for step, values in self._waiting:
                run.log(dict(values), step=step)
            trackio.finish()
        self._waiting.clear()
        if said:
            raise RuntimeError(said[0])

    def finish(self) -> None:
        """Nothing: no session is open."""


def _import(folder: Path) -> ModuleType:
    """The library, which reads its folder from the environment when it is imported."""
    with environment(**{VARIABLE: str(folder)}):
        import trackio
        from trackio.utils import TRACKIO_DIR
    if folder != TRACKIO_DIR:
        raise RuntimeError(f"in one process trackio has one folder, and that is {TRACKIO_DIR}")
    return trackio


@contextlib.contextmanager
def _quiet() -> Iterator[list[str]]:
    """Keep trackio's lines from standard output; the value is what it warns of within the block."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        yield said
    said += [str(warning.message) for warning in caught if "trackio" in str(warning.message)]
