"""What a user's jobs request from Slurm: settings from slurm.yaml and the command line."""

from __future__ import annotations

import dataclasses
import math
import operator
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bnrecon.runtime.errors import UserError, nearest

FILE = "slurm.yaml"
PREFIX = "slurm."


@dataclass(frozen=True)
class ClusterSettings:
    """What each job requests from Slurm; ``None`` is Slurm's default, for the time 60 minutes."""

    partition: str | None = None  # the partition, or several separated by commas
    account: str | None = None  # the account to charge
    qos: str | None = None  # quality of service
    gpus: int = 0  # GPUs of a job
    mem: str | None = None  # memory of a job, in Slurm's notation: ``"8G"``
    time: int | None = None  # minutes until a job is stopped and continued in a new one
    cpus: int = 1  # cores of a job
    setup: tuple[str, ...] = ()  # shell commands that run before a job
    array_parallelism: int = 256  # how many jobs of an array run at once
    requeues: int = 10  # how often a job is requeued at its time limit


NAMES = tuple(each.name for each in dataclasses.fields(ClusterSettings))


def config_file() -> Path:
    """The file of a user's settings, unless ``--config-dir`` has one."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    # Without a home folder this path does not exist, and no file is needed.
    return Path(os.path.expanduser(folder)) / "bnrecon" / FILE


def read(config_dir: Path | None = None, overrides: Sequence[str] = ()) -> ClusterSettings:
    """The settings of ``slurm.yaml``, overridden by those of the command line.

    If ``config_dir`` has no such file, the user's (``config_file``) is read.

    >>> read(Path(), ["slurm.time=1:30:00", "slurm.mem=500MB", "slurm.setup=module load cuda"])
    ClusterSettings(..., mem='500M', time=90, cpus=1, setup=('module load cuda',), ...)

    Raises:
        UserError: an unknown setting, a value that is not allowed, a file that cannot be read, or a
            ``config_dir`` that is not a folder.
    """
    path, values = _read_file(config_dir)
    fields = {name: _convert(f"{path}: {name}", name, value) for name, value in values.items()}
    parsed: dict[str, Any] = {}
    for word in overrides:
        name, equals, text = word.removeprefix(PREFIX).partition("=")
        _check_name(word.partition("=")[0], name, PREFIX)
        if not equals:
            raise UserError(f"{word}: give a value, as in {PREFIX}{name}=...")
        if name in parsed:
            raise UserError(f"{PREFIX}{name}= is given twice")
        shown = f"{PREFIX}{name}"
        value = _parse(shown, text) if text.startswith("[") else text  # a list has brackets
        parsed[name] = _convert(shown, name, value)
    return ClusterSettings(**(fields | parsed))


def _read_file(config_dir: Path | None) -> tuple[Path | None, Mapping[str, Any]]:
    """The file and its content; ``None`` and empty if there is none."""
    if config_dir is not None and not config_dir.is_dir():
        raise UserError(f"--config-dir={config_dir}: no such folder")
    path = config_file()
    if config_dir is not None and os.path.lexists(config_dir / FILE):
        path = config_dir / FILE
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if os.path.islink(path):
            raise UserError(f"{path}: this link leads nowhere") from None
        return None, {}
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UserError(f"{path} cannot be read: {reason}") from None
    values = _parse(str(path), text)
    if values is None or values == "":
        return path, {}
    if not isinstance(values, dict):
        raise UserError(f"{path}: give one setting per line, as in partition: gpu")
    for name in values:
        _check_name(f"{path}: {name}", str(name), "")
    return path, values


def _parse(where: str, text: str) -> Any:
    """Parse YAML with every value as typed: 1:30:00 is a time, not a number of seconds."""
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)  # only strings, lists and mappings
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f" in line {mark.line + 1}"
        problem = getattr(error, "problem", None) or "a character that is not allowed"
        raise UserError(f"{where}: no YAML{line} ({problem})") from None


def _check_name(shown: str, name: str, prefix: str) -> None:
    if name not in NAMES:
        raise UserError(f"{shown}: {nearest(prefix + name, [prefix + each for each in NAMES])}")


def _convert(shown: str, name: str, value: Any) -> Any:
    """Convert a setting's value from text; ``shown`` is its name in messages."""
    if name == "setup":
        lines = [value] if isinstance(value, str) else value
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise UserError(f"{shown}: give a line of shell, or a list of them")
        return tuple(part for line in lines for part in line.splitlines() if part.strip())
    if not isinstance(value, str):
        raise UserError(f"{shown}: give one value")
    if name in ("gpus", "cpus", "array_parallelism", "requeues"):
        least = 0 if name in ("gpus", "requeues") else 1
        if not re.fullmatch(r"[0-9]{1,6}", value) or int(value) < least:
            raise UserError(f"{shown}={value}: give a whole number, {least} or more")
        return int(value)
    if name == "mem":
        return _memory(shown, value)
    if name == "time":
        return _minutes(shown, value)
    if not re.fullmatch(r"[\w.,@:/+-]{1,200}", value):
        raise UserError(f"{shown}={value!r}: give a name, without spaces")
    return value


def _memory(shown: str, value: str) -> str:
    """Memory in Slurm's notation; a plain number is in megabytes there."""
    match = re.fullmatch(r"([1-9][0-9]{0,9})\s*(?:([KMGT])(?:i?B)?)?", value, re.IGNORECASE)
    if match is None:
        raise UserError(f"{shown}={value}: give memory, as in 500M or 8G")
    return f"{match[1]}{(match[2] or 'M').upper()}"


def _minutes(shown: str, value: str) -> int:
    """Minutes, from sbatch's formats (90, 90:00, 1:30:00, 1-12, 1-12:00) and from 90m, 36h, 2d."""
    days, dash, clock = value.rpartition("-")
    if match := re.fullmatch(r"([0-9]{1,6})\s*([mhd]?)", value):
        minutes: float = int(match[1]) * {"": 1, "m": 1, "h": 60, "d": 1440}[match[2]]
    elif re.fullmatch(r"([0-9]{1,4}-)?[0-9]{1,4}(:[0-9]{1,2}){0,2}", value):
        parts = [int(part) for part in clock.split(":")]
        units = (60, 1, 1 / 60) if dash or len(parts) == 3 else (1, 1 / 60)
        minutes = 1440 * int(days or 0) + sum(map(operator.mul, parts, units))
    else:
        raise UserError(
            f"{shown}={value}: give minutes, or a time as in 90m, 36h, 1:30:00 or 2-12:00:00"
        )
    if minutes <= 0:
        raise UserError(f"{shown}={value}: give at least a minute")
    return math.ceil(minutes)
