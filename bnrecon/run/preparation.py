"""Before any work: check registered names, load images, open trackers."""

from __future__ import annotations

import logging

from bnrecon.config.composition import option_names
from bnrecon.config.schema import RunConfig
from bnrecon.data import DATASETS, Images, load
from bnrecon.data.loading import refuse_unused_root
from bnrecon.features.register import distribution
from bnrecon.reporting.trackers.adapters import open_trackers
from bnrecon.runtime.tracking import Trackers
from bnrecon.runtime.user_code import unregistered
from bnrecon.solvers.register import lookup
from bnrecon.targets.register import check_family
from bnrecon.targets.store import Trained

logger = logging.getLogger(__name__)


def check_names(config: RunConfig) -> None:
    """Raise ``UserError`` for names that are not registered, before data is read."""
    distribution(config.features.name)
    if config.data.name not in DATASETS:
        raise unregistered("data", config.data.name, DATASETS)
    if config.solver.name != "auto":
        lookup(config.solver.name)
    with option_names("target"):
        check_family(config.target.family)


def check_root(config: RunConfig) -> None:
    """Raise ``UserError`` for a ``data.root`` that would not be used."""
    with option_names("data"):
        refuse_unused_root(config.data)


def load_images(config: RunConfig) -> Images:
    """The images of a run; errors name its options."""
    with option_names("data"):
        return load(config.data)


def announce_trackers(config: RunConfig) -> Trackers:
    """Open the trackers, and log how to view each."""
    trackers = open_trackers(config)
    for view in trackers.views:
        logger.info("tracker   %s", view)
    return trackers


def tested_on(target: Trained) -> str:
    """The images of a target's accuracy: test images, or held-out training images."""
    held_out = target.about["config"]["data"].get("validation") is not None
    return "held-out" if held_out else "test"
