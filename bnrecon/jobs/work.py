"""Work to compute, its outcomes, the executors that compute it, and batches of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from bnrecon.runtime.digests import content_key, json_values

if TYPE_CHECKING:
    from bnrecon.config.schema import RunConfig

SWEEP = "sweep"  # stands for a scale
Kind = Literal["done", "mistake", "failed"]


class Detached(Exception):
    """The work continues elsewhere, and this process need not wait; the message says where."""


@dataclass(frozen=True)
class Started:
    """Work has started."""

    key: str


@dataclass(frozen=True)
class Outcome:
    """How an item of work ended."""

    key: str  # the work's key
    label: str  # its name in progress messages
    kind: Kind  # ``"done"``; ``"mistake"`` in the request; ``"failed"`` for any other reason
    gist: str  # a summary of the result, or the reason, in one line
    seconds: float  # duration
    log: str  # the file with the details


class Work(Protocol):
    """An item of work: all that an executor knows of runs and tasks."""

    @property
    def key(self) -> str:
        """A key, equal for the same work wherever it is requested."""

    @property
    def part(self) -> str:
        """Its part of the study."""

    @property
    def label(self) -> str:
        """Its name in progress messages."""

    @property
    def command(self) -> str:
        """The command that computes only this."""

    @property
    def config(self) -> RunConfig | None:
        """A run whose images it needs; ``None`` for none."""

    @property
    def target(self) -> RunConfig | None:
        """A run whose target it reads, which can be trained first; ``None`` for none."""

    def is_finished(self) -> bool:
        """Whether its result can be read."""

    def compute(self) -> str:
        """Do the work, store the result, and return a summary."""


class Executor(Protocol):
    """Computes work; the caller decides what, and an executor only where."""

    name: str  # who computes, in words
    processes: int  # how many items are computed at once; 0 if unknown

    def run(self, stages: Sequence[Sequence[Work]]) -> Generator[Started | Outcome, None, None]:
        """Compute the first stage, then the next; yield each start and each outcome.

        Failed work does not stop the rest. Closing the iterator stops the current work at its next
        safe point.

        Raises:
            Interrupted: work was stopped by a signal or a time limit.
        """


@dataclass(frozen=True)
class Batch:
    """A study at a scale, or a sweep: where its records are, and how other processes plan it."""

    folder: Path  # the folder of the study or the sweep
    scale: str  # the scale of its work, or ``SWEEP``
    command: str  # the command that continues it
    planner: str = ""  # a function, as ``"package.module:function"``, that makes all work by key
    words: tuple[str, ...] = ()  # the planner's argument

    @property
    def locks_folder(self) -> Path:
        """The folder of the locks that commands on one machine share."""
        return self.folder / ".locks"

    @property
    def log(self) -> Path:
        """The log file of the work's details."""
        return self.folder / f"{self.scale}.log"

    @property
    def progress(self) -> Path:
        """The file that records progress."""
        return self.folder / f"progress-{self.scale}.jsonl"

    def details(self, processes: int) -> Path:
        """Where to find the details of work in so many processes; for jobs, the folder.

        >>> Batch(Path("study"), "smoke", "").details(2).name
        'smoke-process-*.log'
        """
        if processes == 0:
            return self.folder / "jobs"
        return self.log if processes == 1 else process_log(self.log, "*")


def title(name: str, scale: str) -> str:
    """The name of a study or a sweep in messages.

    >>> title("giannou2023", "smoke"), title("11d0db68f3", SWEEP)
    ('giannou2023 scale=smoke', 'sweep 11d0db68f3')
    """
    return f"sweep {name}" if scale == SWEEP else f"{name} scale={scale}"


def process_log(log: Path, number: int | str) -> Path:
    """The log of one of several processes, counted from 1; ``"*"`` stands for all."""
    return log.with_name(f"{log.stem}-process-{number}.log")


def target_key(config: RunConfig) -> str:
    """The key of the training of a run's target: the same for all runs on the same device.

    >>> from bnrecon.config.composition import compose
    >>> first = compose(["target.width=8"])
    >>> second = compose(["target.width=8", "features=id_cond", "seeds=[3]"])
    >>> target_key(first) == target_key(second)
    True
    """
    request = config.target_request
    content = {
        "data": dataclasses.asdict(request.data),
        "target": [type(request.target).__name__, dataclasses.asdict(request.target)],
        "train": dataclasses.asdict(request.train),
        "store": str(request.store),
        "device": config.device,
        "threads": config.threads,
    }
    return f"target-{content_key(json_values(content))}"


def not_tried(item: Work, failed: Mapping[str, Outcome]) -> Outcome | None:
    """The outcome of work whose target failed to train; ``None`` for any other work."""
    if not failed or item.target is None or (key := target_key(item.target)) not in failed:
        return None
    target = failed[key]
    gist = f"not tried: {target.label} failed ({target.gist})"
    return Outcome(item.key, item.label, "failed", gist, 0.0, target.log)
