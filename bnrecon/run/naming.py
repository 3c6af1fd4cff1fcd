"""Where a run lies, and what belongs to its name."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from bnrecon.config.schema import VOLATILE, RunConfig
from bnrecon.data import DataSpec, Images, load
from bnrecon.features.register import distribution
from bnrecon.runtime import digests
from bnrecon.solvers.base import AUTO, lookup
from bnrecon.targets.store import own_code

__all__ = ["NAMELESS", "code_of_run", "data_spec", "run_folder"]

NAMELESS = ("folder", "imagenet")  # data whose name does not say which images they are


def run_folder(config: RunConfig, data: Images | None = None) -> Path:
    """Where a run lies: named by what differs from the defaults, so that an option added later keeps old runs valid.

    Of a user's own images (``data=folder``, ``imagenet``) the pixels belong to the name, of a user's own code its source.
    """
    content = digests.differences(config, VOLATILE)
    if config.data.name in NAMELESS:
        content["data.pixels"] = (data or load(data_spec(config))).checksum()
    content |= code_of_run(config)
    name = f"{config.data.name}-{config.target.name}-{config.features.name}-{digests.content_key(content)}"
    return Path(config.outputs) / "runs" / name


def data_spec(config: RunConfig) -> DataSpec:
    """What the run's images are loaded by."""
    return DataSpec(**dataclasses.asdict(config.data))


def code_of_run(config: RunConfig) -> dict[str, str]:
    """Fingerprints of what a user has registered, by option: a run of other code is another run."""
    found = {"features.code": distribution(config.features.name).code}
    for name in AUTO if config.solver.name == "auto" else (config.solver.name,):
        found["solver.code" if name == config.solver.name else f"solver.{name}.code"] = lookup(
            name
        ).code
    return own_code(config) | {name: code for name, code in found.items() if code is not None}
