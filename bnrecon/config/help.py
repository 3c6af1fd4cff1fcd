"""The meaning and allowed values of each option, from the specs, for the command line's help."""

from __future__ import annotations

import dataclasses
import importlib.resources
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from bnrecon.config.schema import GROUPS, SPECS, RunConfig, spec_classes
from bnrecon.runtime.digests import default_of
from bnrecon.runtime.options import KINDS, field_types, limits_text

WIDTH = 100
COLUMN = 34  # start of the meanings


@dataclass(frozen=True)
class Option:
    """An option of the command line."""

    name: str  # with its group, as in ``train.lr``
    type: str  # in words, as in "a number"
    default: Any  # the default, or the current value
    allowed: tuple[str, ...]  # the allowed values; empty if they cannot be listed
    help: str  # its meaning
    limits: str = ""  # the limits of a number in words; empty if there are none


def options(config: RunConfig | None = None) -> list[Option]:
    """All options: data, target, features, solver, train, and the run's.

    A ``config`` provides values instead of defaults, and the target's family. Without it, the
    options of all families are listed, each once.

    >>> [option.name for option in options()][:3]
    ['data.name', 'data.root', 'data.download']
    """
    by_name: dict[str, Option] = {}
    for group in SPECS:
        values = None if config is None else getattr(config, group)
        for kind in spec_classes(group) if values is None else [type(values)]:
            for option in _options(kind, f"{group}.", values):
                by_name.setdefault(option.name, option)
    run_options = [option for option in _options(RunConfig, "", config) if option.name not in SPECS]
    return [*by_name.values(), *run_options]


def choices(group: str) -> dict[str, str]:
    """The choices of a group, such as ``vgg18`` of ``target``, with their meanings.

    >>> choices("data")["digits"]
    "scikit-learn's 1,797 handwritten digits, 8x8; nothing to download."
    """
    folder = importlib.resources.files("bnrecon.configs") / group
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=str)
    descriptions = {}
    for file in files:
        lines = file.read_text(encoding="utf-8").splitlines()
        comments = (line for line in lines if line.startswith("# ") and "@package" not in line)
        about = next(comments, "").removeprefix("# ")
        descriptions[file.name.removesuffix(".yaml")] = about
    return descriptions


def text(config: RunConfig) -> str:
    """The help on choices and options, with the values of ``config``."""
    parts = ["choices, as in features=orthogonal (your own yaml files: bnrecon run --config-dir)"]
    for group in GROUPS:
        parts.append(_table(group, choices(group).items()))
    family = config.target.family
    parts.append(
        "options and their current values, as in train.epochs=5; lists as in seeds=[0,1,2].\n"
        f"For target families other than {family}: bnrecon run target=resnet18 --help"
    )
    listed = options(config)
    for group in SPECS:
        rows = [option for option in listed if option.name.startswith(f"{group}.")]
        parts.append(_table(group, map(_row, rows)))
    run_options = [option for option in listed if "." not in option.name and option.name != "scale"]
    parts.append(_table("run", map(_row, run_options)))
    return "\n\n".join(parts)


def _options(spec: type, prefix: str, values: Any) -> Iterable[Option]:
    kinds = field_types(spec)
    for field in dataclasses.fields(spec):
        default = default_of(field) if values is None else getattr(values, field.name)
        either = ("true", "false") if bool in kinds[field.name] else ()
        yield Option(
            prefix + field.name,
            " or ".join(KINDS[kind] for kind in kinds[field.name] if kind in KINDS) or "a list",
            None if default is dataclasses.MISSING else default,
            tuple(map(str, field.metadata.get("allowed", either))),
            field.metadata.get("help", ""),
            limits_text(field.metadata),
        )


def _row(option: Option) -> tuple[str, str]:
    kind = " ".join(filter(None, (option.type, option.limits)))
    allowed = ", ".join(option.allowed) or kind
    return f"{option.name}={_value(option.default)}", f"{option.help} [{allowed}]"


def _value(value: Any) -> str:
    """A value as written on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{','.join(map(_value, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    lines = [f"{title}:"]
    for name, about in rows:
        first, indent = f"  {name}", " " * COLUMN
        if len(first) >= COLUMN:
            lines.append(first)
            first = ""
        start = f"{first:<{COLUMN}}"
        filled = textwrap.fill(about, WIDTH, initial_indent=start, subsequent_indent=indent)
        lines.append(filled or first)
    return "\n".join(lines)
