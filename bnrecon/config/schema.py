"""All options of a user: the packages' specs, and a run's other options."""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

from hydra.core.config_store import ConfigStore

from bnrecon.data.spec import DataSpec
from bnrecon.features.spec import FeatureSpec
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.extras import TRACKERS
from bnrecon.runtime.options import check_fields, option
from bnrecon.solvers.spec import SolverSpec
from bnrecon.targets.spec import TARGETS, CustomTarget, TargetRequest, TargetSpec, TrainSpec

# Options that change where or how fast a run happens, not what it computes.
VOLATILE = frozenset(
    {
        *("scale", "outputs", "targets", "data.root", "data.download", "data.workers"),
        *("features.storage", "train.time_limit", "train.checkpoint_seconds", "target.name"),
        *("keep_source", "device", "threads", "tracker", "tracker_folder", "tracker_project"),
        "target.weights",  # the content counts, as for user code
        "imports",  # what they register counts, if used
    }
)
SPECS: dict[str, type] = {
    "data": DataSpec,
    "target": TargetSpec,
    "features": FeatureSpec,
    "solver": SolverSpec,
    "train": TrainSpec,
}
GROUPS = (*SPECS, "scale", "experiment")


@dataclass
class RunConfig:
    """One run of the main job."""

    data: DataSpec
    target: TargetSpec
    scale: str = option(help="size of the run, as tables name it")
    features: FeatureSpec = field(default_factory=FeatureSpec)
    solver: SolverSpec = field(default_factory=SolverSpec)
    train: TrainSpec = field(default_factory=TrainSpec)
    seeds: list[int] = option([0, 1, 2], "one source network is drawn and solved for each seed")
    device: str = option("auto", "where to compute", allowed=("auto", "cpu", "cuda"))
    threads: int | None = option(None, "processor threads; null: PyTorch's default", above=0)
    outputs: str = option("outputs", "folder that runs are written to", folder=True)
    targets: str | None = option(
        None, "folder of trained targets; null: OUTPUTS/targets", folder=True
    )
    evaluate: str = option(
        "auto",
        "source: all test images through the real source network; collapsed: only source_images of "
        "them, those nearest to a decision boundary, the rest through its collapsed form; "
        "auto: by cost",
        allowed=("auto", "source", "collapsed"),
    )
    source_images: int = option(
        64, "minimum number of test images through the real source network", at_least=1
    )
    keep_source: bool = option(True, "keep the source networks' files once the result is written")
    imports: list[str] = option(
        [], "Python modules that register your own data, targets, features or solvers"
    )
    tracker: list[str] = option(
        [],
        "experiment trackers to log to; several as in [tensorboard,wandb]; none: no tracking",
        allowed=("none", *TRACKERS),
    )
    tracker_folder: str | None = option(
        None, "folder that trackers write to; null: OUTPUTS/trackers", folder=True
    )
    tracker_project: str = option("bnrecon", "project in trackio, wandb and MLflow", file_name=True)

    def __post_init__(self) -> None:
        check_fields(self)
        self.tracker = [name for name in dict.fromkeys(self.tracker) if name != "none"]
        seeds = self.seeds
        if not seeds or len(set(seeds)) != len(seeds) or not 0 <= min(seeds) <= max(seeds) < 2**63:
            raise UserError(
                f"seeds={seeds}: give one or more different seeds from 0 to 2^63 - 1, "
                "as in seeds=[0,1,2]"
            )

    @property
    def tracking_folder(self) -> Path:
        """The folder that trackers write to."""
        return Path(self.tracker_folder or f"{self.outputs}/trackers")

    @property
    def target_request(self) -> TargetRequest:
        """The run's target, its training and data, and its store."""
        store = Path(self.targets or f"{self.outputs}/targets")
        return TargetRequest(self.target, self.train, self.data, store)


def register_choices(overrides: Sequence[str], config_dir: str | None = None) -> None:
    """With ``imports=``, let a choice without a yaml file be a registered name.

    ``features=cauchy imports=[my_parts]`` is then ``features.name=cauchy``, with the defaults of
    its spec; a yaml file of that name, also in ``config_dir``, takes precedence.
    """
    if not any(word.startswith("imports=") for word in overrides):
        return
    store, folders = ConfigStore.instance(), [importlib.resources.files("bnrecon.configs")]
    folders += [Path(config_dir)] if config_dir else []
    for group, _, names in (word.partition("=") for word in overrides):
        for name in names.split(",") if group in ("data", "features", "solver", "target") else ():
            there = (folder / group / f"{name}.yaml" for folder in folders)
            named = re.fullmatch(r"(?!.*schema$)[\w-]+", name)  # not a schema's name
            if named and not any(file.is_file() for file in there):
                node = CustomTarget(name, name) if group == "target" else SPECS[group](name=name)
                store.store(group=group, name=name, node=node)


@functools.cache
def register_schema() -> None:
    """Store the specs for the ``defaults`` of yaml files."""
    store = ConfigStore.instance()
    store.store(name="run_schema", node=RunConfig)
    for group, spec in SPECS.items():
        if group != "target":
            store.store(group=group, name="schema", node=spec)
    for name, target in TARGETS.items():
        store.store(group="target", name=f"{name}_schema", node=target)


def spec_classes(group: str) -> list[type]:
    """The spec classes of a group's options: one per family for the target."""
    return list(TARGETS.values()) if group == "target" else [SPECS[group]]


def field_names(spec: type) -> list[str]:
    """The fields of a spec.

    >>> field_names(SolverSpec)
    ['name', 'tolerance', 'max_iterations']
    """
    return [item.name for item in fields(spec)]
