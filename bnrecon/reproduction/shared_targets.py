"""Targets that several pieces of work read: each is trained once, before any of these begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bnrecon.config import composition
from bnrecon.config.schema import RunConfig
from bnrecon.data import DataSpec, load
from bnrecon.reproduction.outcome import Outcome
from bnrecon.reproduction.work import Work
from bnrecon.run import main_job
from bnrecon.runtime import hardware
from bnrecon.runtime.digests import content_key, json_values
from bnrecon.runtime.errors import UserError
from bnrecon.targets.location import is_trained

__all__ = ["TargetWork", "not_tried", "shared_targets", "target_key"]


@dataclass(frozen=True)
class TargetWork:
    """The training of a run's target, stored in the folder of targets.

    Args:
        first: the first piece of work that reads it.
        config: a run of this target.
    """

    first: Work
    config: RunConfig

    @property
    def part(self) -> str:
        """What its seconds are counted under."""
        return "targets"

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

    @property
    def target(self) -> RunConfig | None:
        """None but itself."""
        return None

    def is_finished(self) -> bool:
        """Whether the target is stored."""
        with composition.option_names("data"):
            images = load(self.config.data)
        try:
            device = hardware.resolve_device(self.config.device)
        except UserError:  # a GPU that only the jobs have, which look again
            return False
        return is_trained(self.config.target_request, images, device)

    def damage(self) -> None:
        """The store of targets looks after its files itself."""

    def set_aside(self) -> None:
        """The store of targets looks after its files itself."""

    def compute(self) -> str:
        """Train the target."""
        return main_job.train_only(self.config).text().partition("\n")[0]


def target_key(config: RunConfig) -> str:
    """The same for runs of the same target on the same device.

    >>> first = composition.compose(["target.width=8"])
    >>> second = composition.compose(["target.width=8", "features=id_cond", "seeds=[3]"])
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


def shared_targets(work: Sequence[Work]) -> list[TargetWork]:
    """The targets that several pieces of work read and that are not trained yet.

    A target that one piece alone reads is trained there.
    """
    readers: dict[str, list[tuple[Work, RunConfig]]] = {}
    for item in work:
        if (config := item.target) is not None:
            readers.setdefault(target_key(config), []).append((item, config))
    shared = (TargetWork(*found[0]) for found in readers.values() if len(found) > 1)
    return [target for target in shared if not target.is_finished()]


def not_tried(item: Work, failed: Mapping[str, Outcome]) -> Outcome | None:
    """The outcome of work whose target's training failed before; ``None`` for any other work.

    Args:
        item: the work.
        failed: outcomes of work that failed, by key.
    """
    if not failed or item.target is None or (found := failed.get(target_key(item.target))) is None:
        return None
    gist = f"not tried: {found.label} failed ({found.gist})"
    return Outcome(item.key, item.label, "failed", gist, 0.0, found.log)
