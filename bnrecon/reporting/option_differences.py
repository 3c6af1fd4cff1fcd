"""The options that two runs differ by, whatever version each was stored by."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

from bnrecon.config.schema import SPECS, TARGETS, RunConfig

NOT_RECORDED = "not recorded"


def differing_options(
    one: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """The options that differ, by dotted name, with both values.

    A result that was stored before an option existed does not name it: it was run with what is the
    option's default since. ``NOT_RECORDED`` stands for an option that there no longer is.

    >>> schema = {"data": {"name": "digits"}, "target": {"name": "mlp", "family": "mlp"}}
    >>> differing_options(schema | {"seeds": [0]}, schema | {"seeds": [1], "threads": None})
    {'seeds': ([0], [1])}
    """
    flat = [dict(_flatten(config)) for config in (one, other)]
    names = dict.fromkeys(name for options in flat for name in options)
    families = (str(options.get("target.family")) for options in flat)
    specs: list[Any] = [TARGETS.get(family, SPECS["target"]) for family in families]
    defaults = list(map(_defaults, specs))
    pairs = {
        name: tuple(
            options.get(name, default.get(name, NOT_RECORDED))
            for options, default in zip(flat, defaults, strict=True)
        )
        for name in names
    }
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


def _flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options by dotted name."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


@functools.cache
def _defaults(target: type) -> dict[str, Any]:
    """The defaults of all options that have one."""
    defaults = {}
    specs = SPECS | {"target": target}
    for prefix, spec in (("", RunConfig), *((f"{group}.", spec) for group, spec in specs.items())):
        for field in dataclasses.fields(spec):
            if field.default is not dataclasses.MISSING:
                defaults[prefix + field.name] = field.default
            elif field.default_factory is not dataclasses.MISSING:
                defaults[prefix + field.name] = field.default_factory()
    return defaults
