"""Work of a study: a task or a run with its file, or a target that several items read."""

from __future__ import annotations

import functools
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from bnrecon.config import composition
from bnrecon.config.schema import RunConfig
from bnrecon.data import load
from bnrecon.jobs.work import Work, target_key
from bnrecon.reporting.result import RunResult
from bnrecon.reproduction import pieces
from bnrecon.reproduction.task_store import TaskResult, task_path
from bnrecon.run import finished, main_job
from bnrecon.run.naming import run_folder
from bnrecon.runtime import files, hardware, locks
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.provenance import commit
from bnrecon.runtime.shipped import is_packaged, shipped_outputs
from bnrecon.targets.location import is_trained

if TYPE_CHECKING:
    from bnrecon.reproduction.parts import Task

R = TypeVar("R")


class _Stored(Generic[R]):
    """Work with its result in a file: the user's, or else the shipped one."""

    @property
    def _paths(self) -> tuple[Path, ...]:
        """The possible files of the result; the first readable one counts."""
        raise NotImplementedError

    def _read(self, path: Path) -> R:
        raise NotImplementedError

    @functools.cached_property
    def _last(self) -> dict[tuple[object, ...], tuple[Path | None, R | None, str | None]]:
        """A cache of valid results, by the state of the files: a page reads them repeatedly."""
        return {}

    def _stored(self) -> tuple[Path | None, R | None, str | None]:
        """The file that counts, its result, and the problem of an earlier file."""
        state = tuple((path, files.state(path)) for path in self._paths)
        if state in self._last:
            return self._last[state]
        self._last.clear()
        read = self._read_first()
        if read[2] is None:  # errors are not cached: a permission does not change the state
            self._last[state] = read
        return read

    def _read_first(self) -> tuple[Path | None, R | None, str | None]:
        damage = None
        for path in self._paths:
            try:
                return path, self._read(path), damage
            except FileNotFoundError:
                continue
            except files.Damaged as error:
                damage = damage or str(error)
        return None, None, damage

    def result(self) -> R | None:
        """The stored result, if the work is finished."""
        return self._stored()[1]

    def is_finished(self) -> bool:
        """Whether there is a result."""
        return self.result() is not None

    def is_shipped(self) -> bool:
        """Whether its result comes from the installed package."""
        if not any(map(is_packaged, self._paths)):  # without reading
            return False
        path = self._stored()[0]
        return path is not None and is_packaged(path)

    def damage(self) -> str | None:
        """What is wrong with its files, if anything; of shipped ones, if those count."""
        return self._stored()[2]


@dataclass(frozen=True)
class RunWork(_Stored[RunResult]):
    """A run of the main job, stored in its folder's ``result.json``."""

    part: str  # the part of the study
    # What distinguishes the run from others of its part, by heading; ``"solver"`` is what a
    # study's solvers select by
    labels: Mapping[str, str]
    overrides: tuple[str, ...]
    config: RunConfig  # composed from the overrides

    @functools.cached_property
    def folder(self) -> Path:
        """The run's folder."""
        return run_folder(self.config)

    @property
    def key(self) -> str:
        """The folder's name, which identifies the run."""
        return self.folder.name

    @property
    def label(self) -> str:
        """The part and what distinguishes the run from others."""
        return " ".join((self.part, *filter(None, self.labels.values())))

    @property
    def solver(self) -> str | None:
        """The name by which a study's solvers select it."""
        return self.labels.get("solver")

    @property
    def command(self) -> str:
        """The main job's command."""
        return shlex.join(("bnrecon", "run", *self.overrides))

    @property
    def target(self) -> RunConfig | None:
        """The run itself."""
        return self.config

    @property
    def _paths(self) -> tuple[Path, ...]:
        """The shipped file counts only without a user's file, not even a damaged one."""
        written = self.folder / "result.json"
        shipped = shipped_outputs(Path(self.config.outputs)) / "runs" / self.folder.name
        return (written if written.exists() else shipped / "result.json",)

    def _read(self, path: Path) -> RunResult:
        return finished.read(path, self.config)

    def compute(self) -> str:
        """Do the main job."""
        main_job.run(self.config)
        result = self.result()
        return "no result" if result is None else f"loss {result.loss}"


@dataclass(frozen=True)
class TaskWork(_Stored[TaskResult]):
    """A task of an experiment, stored in its own file."""

    part: str  # the part of the study
    scale: str  # the request's scale
    task: Task
    folder: Path  # the study's folder, which is written
    shipped: Path  # the folder of shipped results, read if the study's folder has none
    threads: int | None = None  # the ``threads`` option, for tasks without options
    solver: ClassVar[None] = None  # no study's solver selects tasks

    @property
    def key(self) -> str:
        """See ``task_key``; the file's name ends with it."""
        return self.path.stem.rpartition("-")[2]

    @property
    def label(self) -> str:
        """The experiment and the task."""
        return f"{self.part} {self.task.name}"

    @property
    def command(self) -> str:
        """The call of its function."""
        function = self.task.function
        name = getattr(function, "__qualname__", type(function).__name__)
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.task.arguments.items())
        options = "" if self.task.options is None else f" with {' '.join(self.task.options)}"
        return f"{function.__module__}.{name}({arguments}){options}"

    @functools.cached_property
    def path(self) -> Path:
        """Its file in the study's folder."""
        return task_path(self.folder, self.part, self.scale, self.task)

    @property
    def _paths(self) -> tuple[Path, ...]:
        return self.path, self.shipped / self.path.relative_to(self.folder)

    @property
    def config(self) -> RunConfig | None:
        """The configuration of the runs that the task's options describe."""
        return None if self.task.options is None else composition.compose(self.task.options)

    @property
    def target(self) -> RunConfig | None:
        """The run that the task's options describe, if the task reads its target."""
        return self.config if self.task.reads_target else None

    def _read(self, path: Path) -> TaskResult:
        """Read a file, and check that it belongs to this task."""
        result = TaskResult.read(path)
        if result.key != self.key:
            raise files.Damaged(f"{path} is of another task, {result.experiment} {result.task}")
        return result

    def set_aside_damaged(self, locks_folder: Path) -> None:
        """Move its damaged file away; ``locks_folder`` holds the locks."""
        if self.damage() is not None:
            waiting = f"waiting for another to finish {self.label}"
            with locks.lock_work(self.key, locks_folder, lambda: waiting):
                files.read_if_valid(self.path, self._read, quarantine_damaged=True)

    def compute(self) -> str:
        """Compute the rows and write them."""
        started, config = time.monotonic(), self.config
        # A task without options runs on the CPU.
        device, threads = (config.device, config.threads) if config else ("cpu", self.threads)
        with hardware.use_threads(threads), pieces.stored_in(self.path.with_suffix("")) as saved:
            machine = hardware.describe_device(hardware.resolve_device(device))
            rows = self.task.compute().to_dict("records")
            seconds = round(time.monotonic() - started + sum(saved), 1)
            TaskResult(
                self.part,
                self.scale,
                self.task.name,
                self.key,
                tuple({str(name): cell for name, cell in row.items()} for row in rows),
                commit() or "installed",
                machine,
                seconds,
            ).write(self.path)
        return "done"


@dataclass(frozen=True)
class TargetWork:
    """The training of a run's target, stored in the folder of targets."""

    first: Work  # the first item of work that reads it
    config: RunConfig  # a run of this target
    part = "targets"  # its part for durations
    target = None

    @property
    def key(self) -> str:
        """See ``target_key``."""
        return target_key(self.config)

    @property
    def label(self) -> str:
        """A name with the work that needs it first."""
        return f"target of {self.first.label}"

    @property
    def command(self) -> str:
        """The command of the first work; ``bnrecon train`` takes the same options as the run."""
        return self.first.command

    def is_finished(self) -> bool:
        """Whether the target is stored."""
        try:
            with composition.option_names("data"):
                images = load(self.config.data)
            device = hardware.resolve_device(self.config.device)
        except UserError:  # no images, or a GPU that only the jobs have; training reports it
            return False
        return is_trained(self.config.target_request, images, device)

    def compute(self) -> str:
        """Train the target."""
        return main_job.train_only(self.config).partition("\n")[0]


def with_targets(work: Sequence[Work]) -> dict[str, Work]:
    """Work by its key, with the training of each target that some of it reads."""
    by_key = {item.key: item for item in work}
    for item in work:
        if (config := item.target) is not None:
            by_key.setdefault(target_key(config), TargetWork(item, config))
    return by_key


def shared_targets(work: Sequence[Work]) -> list[TargetWork]:
    """The untrained targets that several items of work read.

    A target that only one item reads is trained there.
    """
    readers: dict[str, list[TargetWork]] = {}
    for item in work:
        if (config := item.target) is not None:
            readers.setdefault(target_key(config), []).append(TargetWork(item, config))
    shared = (group[0] for group in readers.values() if len(group) > 1)
    return [target for target in shared if not target.is_finished()]
