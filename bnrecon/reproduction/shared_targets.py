"""Targets that several pieces of work read: each is trained once, before any of these begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bnrecon.config import composition
from bnrecon.config.schema import RunConfig
from bnrecon.data import DataSpec, load
from bnrecon.jobs.work import Work, target_key
from bnrecon.run import target_job
from bnrecon.runtime import hardware
from bnrecon.runtime.errors import UserError
from bnrecon.targets.location import is_trained


@dataclass(frozen=True)
class TargetWork:
    """The training of a run's target, stored in the folder of targets."""

    first: Work  # the first piece of work that reads it
    config: RunConfig  # a run of this target
    part = "targets"  # what its seconds are counted under
    target = None

    @property
    def key(self) -> str:
        """See ``target_key``."""
        return target_key(self.config)

    @property
    def label(self) -> str:
        """Names the work that it comes before."""
        return f"target of {self.first.label}"

    @property
    def command(self) -> str:
        """What is trained; ``bnrecon train`` takes the same options as the run."""
        return self.first.command

    @property
    def data(self) -> DataSpec:
        """The images that it is trained on."""
        return self.config.data

    def is_finished(self) -> bool:
        """Whether the target is stored."""
        with composition.option_names("data"):
            images = load(self.config.data)
        try:
            device = hardware.resolve_device(self.config.device)
        except UserError:  # a GPU that only the jobs have, which look again
            return False
        return is_trained(self.config.target_request, images, device)

    def compute(self) -> str:
        """Train the target."""
        return target_job.train_only(self.config).partition("\n")[0]


def with_targets(work: Sequence[Work]) -> dict[str, Work]:
    """Work by its key, and the training of each target that some of it reads."""
    by_key = {item.key: item for item in work}
    for item in work:
        if (config := item.target) is not None:
            by_key.setdefault(target_key(config), TargetWork(item, config))
    return by_key


def shared_targets(work: Sequence[Work]) -> list[TargetWork]:
    """The targets that several pieces of work read and that are not trained yet.

    A target that one piece alone reads is trained there.
    """
    readers: dict[str, list[TargetWork]] = {}
    for item in work:
        if (config := item.target) is not None:
            readers.setdefault(target_key(config), []).append(TargetWork(item, config))
    shared = (group[0] for group in readers.values() if len(group) > 1)
    return [target for target in shared if not target.is_finished()]
