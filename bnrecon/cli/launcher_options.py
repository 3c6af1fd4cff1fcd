"""The options of a sweep's launcher: ``hydra.launcher.NAME`` and the user's ``slurm.yaml``."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from bnrecon.config import cluster_settings
from bnrecon.runtime.errors import nearest

__all__ = ["explain_option", "set_options"]


FOREVER = 60 * 24 * 365  # minutes: no queue waits for this machine's own processes


def set_options(config: DictConfig, local: bool) -> None:
    """Put other values in the place of the plugin's defaults.

    Of Slurm's options, those of the user's ``slurm.yaml`` stand where the command and the user's
    own configuration give none.

    Args:
        config: of the sweep, changed in place.
        local: whether the jobs are processes of this machine.
    """
    from hydra_plugins.hydra_submitit_launcher import config as plugin

    launcher = config.hydra.launcher
    schema = OmegaConf.structured(plugin.LocalQueueConf if local else plugin.SlurmQueueConf)
    plain, plugins = (OmegaConf.to_container(each, resolve=False) for each in (launcher, schema))
    assert isinstance(plain, dict)
    assert isinstance(plugins, dict)
    options = (option.partition("=")[0].lstrip("+") for option in config.hydra.overrides.hydra)
    given = {option.removeprefix("hydra.launcher.") for option in options}
    given |= {name for name, value in plain.items() if value != plugins.get(name)}
    values: dict[str, Any] = {
        "name": f"bnrecon-{Path(config.hydra.sweep.dir).name}",
        "submitit_folder": "${hydra.sweep.dir}/jobs",  # there before the first job starts
        "stderr_to_stdout": True,
    }
    values |= {"timeout_min": FOREVER} if local else _slurm(config, given)
    with read_write(config), open_dict(launcher):
        for name in values.keys() - given:
            launcher[name] = values[name]


def _slurm(config: DictConfig, given: set[str]) -> dict[str, Any]:
    """The user's settings, and what suits runs that resume."""
    sources = config.hydra.runtime.config_sources
    own = [Path(each.path) for each in sources if each.provider == "command-line"]
    slurm = cluster_settings.read(own[0] if own else None)
    minutes = config.hydra.launcher.timeout_min
    if "timeout_min" not in given:
        minutes = slurm.time or minutes
    values: dict[str, Any] = {
        "partition": slurm.partition,
        "account": slurm.account,
        "qos": slurm.qos,
        "gpus_per_node": slurm.gpus or None,
        "cpus_per_task": slurm.cpus,
        "timeout_min": minutes,
        "setup": list(slurm.setup) or None,
        "array_parallelism": slurm.array_parallelism,
        "max_num_timeout": slurm.requeues,
        "signal_delay_s": min(120, 15 * minutes),
    }
    values["additional_parameters"] = {"requeue": True}  # a job may be queued again
    if slurm.mem and not any(name.startswith("mem") for name in given):
        values["additional_parameters"]["mem"] = slurm.mem
    return {name: value for name, value in values.items() if value is not None}


def explain_option(error: BaseException) -> str | None:
    """What is wrong with a ``hydra.launcher.NAME``, where that is what an error is about."""
    cause = error.__cause__ or error
    name = re.search(r"full_key: (hydra\.launcher\.\w+)", str(cause))
    kind = getattr(cause, "object_type", None)
    if name is None or "not in" not in str(cause) or not dataclasses.is_dataclass(kind):
        return None
    fields = [field.name for field in dataclasses.fields(kind) if field.name != "_target_"]
    if not fields:  # of Hydra's own launcher, the default
        return f"{name[1]}: is an option of other launchers; add -m hydra/launcher=submitit_slurm"
    allowed = [f"hydra.launcher.{field}" for field in fields]
    return f"{name[1]} is not an option: {nearest(name[1], allowed)}"
