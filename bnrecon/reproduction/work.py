"""Work of a study: an experiment's task or a run of the main job, each with a key and a file."""

from __future__ import annotations

import contextlib
import functools
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from bnrecon.config import composition
from bnrecon.config.schema import RunConfig
from bnrecon.data import DataSpec
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction.task_store import TaskResult, task_key, task_path
from bnrecon.run import finished, main_job
from bnrecon.run.naming import run_folder
from bnrecon.runtime import files, hardware
from bnrecon.runtime.provenance import commit
from bnrecon.runtime.shipped import is_packaged, shipped_outputs

if TYPE_CHECKING:
    from bnrecon.reproduction.experiment import Task

__all__ = ["RunWork", "TaskWork"]


@dataclass(frozen=True)
class RunWork:
    """A run of the main job, stored in its folder's ``result.json``.

    Args:
        part: the part of the study.
        labels: by heading, what tells the run from the others of its part; ``"solver"`` is what a
            study's solvers select by.
        overrides: of the run.
        config: which they compose.
    """

    part: str
    labels: Mapping[str, str]
    overrides: tuple[str, ...]
    config: RunConfig

    @functools.cached_property
    def folder(self) -> Path:
        """The run's folder."""
        return run_folder(self.config)

    @property
    def key(self) -> str:
        """The folder's name, which says what is computed."""
        return self.folder.name

    @property
    def label(self) -> str:
        """The part and what tells the run from others."""
        return " ".join((self.part, *filter(None, self.labels.values())))

    @property
    def solver(self) -> str | None:
        """What a study's solvers select by."""
        return self.labels.get("solver")

    @property
    def command(self) -> str:
        """The main job's command."""
        return shlex.join(("bnrecon", "run", *self.overrides))

    @property
    def data(self) -> DataSpec | None:
        """The images of the run."""
        return self.config.data

    @property
    def target(self) -> RunConfig | None:
        """The run itself."""
        return self.config

    @property
    def path(self) -> Path:
        """The result's file: one's own where there is one, or else what ships."""
        own = self.folder / "result.json"
        shipped = shipped_outputs(Path(self.config.outputs)) / "runs" / self.folder.name
        return own if own.exists() else shipped / "result.json"

    def result(self) -> RunResult | None:
        """The stored result, if the run is finished."""
        with contextlib.suppress(FileNotFoundError, files.Damaged):
            return finished.read(self.path, self.config)
        return None

    def is_finished(self) -> bool:
        """Whether there is a result."""
        return self.result() is not None

    def is_shipped(self) -> bool:
        """Whether its result is that of the installed package."""
        return is_packaged(self.path) and self.is_finished()

    def damage(self) -> str | None:
        """What is wrong with the result's file, if anything."""
        return _told(_damage(lambda: finished.read(self.path, self.config)))

    def set_aside(self) -> None:
        """Nothing: the main job does it, under its own lock."""

    def compute(self) -> str:
        """Do the main job."""
        main_job.run(self.config)
        result = self.result()
        return "no result" if result is None else f"loss {result.loss}"


@dataclass(frozen=True)
class TaskWork:
    """A task of an experiment, stored in a file of its own.

    Args:
        experiment: the part of the study.
        scale: the request's scale.
        task: the task.
        folder: the study's own folder, which is written.
        shipped: the folder of what ships, which is read where the own one has nothing.
        threads: the ``threads`` option, for tasks that have no options themselves.
    """

    experiment: str
    scale: str
    task: Task
    folder: Path
    shipped: Path
    threads: int | None = None
    solver: ClassVar[None] = None  # no study's solver selects tasks

    @property
    def part(self) -> str:
        """The experiment."""
        return self.experiment

    @functools.cached_property
    def key(self) -> str:
        """See ``task_key``."""
        return task_key(self.experiment, self.task)

    @property
    def label(self) -> str:
        """The experiment and the task."""
        return f"{self.experiment} {self.task.name}"

    @property
    def command(self) -> str:
        """The function that is called, and its arguments."""
        function = self.task.function
        name = getattr(function, "__qualname__", type(function).__name__)
        given = ", ".join(f"{key}={value!r}" for key, value in self.task.arguments.items())
        options = "" if self.task.options is None else f" with {' '.join(self.task.options)}"
        return f"{function.__module__}.{name}({given}){options}"

    @functools.cached_property
    def path(self) -> Path:
        """The own file."""
        return task_path(self.folder, self.experiment, self.scale, self.task)

    @property
    def _shipped_path(self) -> Path:
        return self.shipped / self.path.relative_to(self.folder)

    @property
    def data(self) -> DataSpec | None:
        """The images of the runs whose targets the task trains or reads."""
        if self.task.options is None:
            return None
        return composition.compose(self.task.options).data

    @property
    def target(self) -> RunConfig | None:
        """The run that the task's options describe, if the task reads its target."""
        if self.task.options is None or not self.task.reads_target:
            return None
        return composition.compose(self.task.options)

    def _stored(self) -> tuple[Path, TaskResult] | None:
        """One's own result, or else what ships, with its file."""
        for path in (self.path, self._shipped_path):
            with contextlib.suppress(FileNotFoundError, files.Damaged):
                return path, self._read(path)
        return None

    def _read(self, path: Path) -> TaskResult:
        """Read a file, and see that it is of this task."""
        result = TaskResult.read(path)
        if result.key != self.key:
            raise files.Damaged(f"{path} is of another task, {result.experiment} {result.task}")
        return result

    def result(self) -> TaskResult | None:
        """The stored result: one's own, or else what ships."""
        stored = self._stored()
        return None if stored is None else stored[1]

    def is_shipped(self) -> bool:
        """Whether its result is that of the installed package."""
        stored = self._stored() if is_packaged(self._shipped_path) else None
        return stored is not None and is_packaged(stored[0])

    def is_finished(self) -> bool:
        """Whether there is a result."""
        return self.result() is not None

    def damage(self) -> str | None:
        """What is wrong with its files, if anything."""
        own = _damage(lambda: self._read(self.path))
        if own is not None or self.is_finished():
            return _told(own)
        return _told(_damage(lambda: self._read(self._shipped_path)))

    def set_aside(self) -> None:
        """Move a damaged own file away; the key's lock must be held."""
        if (damage := _damage(lambda: self._read(self.path))) is not None:
            files.quarantine(self.path, damage)

    def compute(self) -> str:
        """Compute the rows and write them."""
        started = time.monotonic()
        with self._machine() as machine:
            rows = self.task.compute().to_dict("records")
        seconds = round(time.monotonic() - started, 1)
        TaskResult(
            self.experiment,
            self.scale,
            self.task.name,
            self.key,
            tuple({str(name): cell for name, cell in row.items()} for row in rows),
            commit() or "installed",
            machine,
            seconds,
        ).write(self.path)
        return "done"

    @contextlib.contextmanager
    def _machine(self) -> Iterator[str]:
        """Compute on as many threads as the options say; the value describes the device.

        A task without options is for a processor.
        """
        device, threads = "cpu", self.threads
        if self.task.options is not None:
            config = composition.compose(self.task.options)
            device, threads = config.device, config.threads
        with hardware.use_threads(threads):
            yield hardware.describe_device(hardware.resolve_device(device))


def _damage(read: Callable[[], object]) -> files.Damaged | None:
    """Why a file cannot be read; ``None`` where it can, or where there is none."""
    try:
        read()
    except FileNotFoundError:
        return None
    except files.Damaged as error:
        return error
    return None


def _told(damage: files.Damaged | None) -> str | None:
    return None if damage is None else str(damage)
