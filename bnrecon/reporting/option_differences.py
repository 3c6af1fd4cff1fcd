"""The options in which two runs differ, whatever versions stored them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from bnrecon.config.schema import SPECS, RunConfig
from bnrecon.runtime.digests import default_of, dotted
from bnrecon.targets.spec import TARGETS

NOT_RECORDED = "not recorded"
NO_OPTION = "no such option"


def differing_options(
    one: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, tuple[Any, Any]]:
    """The options that differ, by dotted name, with both values.

    A result stored before an option existed lacks it: it was run with what is now the default.
    ``NOT_RECORDED`` stands for an option that no longer exists, ``NO_OPTION`` for one that only the
    other run's target has.

    >>> schema = {"data": {"name": "digits"}, "target": {"name": "mlp", "family": "mlp"}}
    >>> differing_options(schema | {"seeds": [0]}, schema | {"seeds": [1], "threads": None})
    {'seeds': ([0], [1])}
    """
    flat = [dict(dotted(config)) for config in (one, other)]
    names = dict.fromkeys(name for options in flat for name in options)
    families = (str(options.get("target.family")) for options in flat)
    specs: list[Any] = [TARGETS.get(family, SPECS["target"]) for family in families]
    defaults = list(map(_defaults, specs))
    current = set().union(*(_names(spec) for spec in specs))
    pairs = {
        name: tuple(
            options.get(name, default.get(name, NO_OPTION if name in current else NOT_RECORDED))
            for options, default in zip(flat, defaults, strict=True)
        )
        for name in names
    }
    return {name: (a, b) for name, (a, b) in pairs.items() if a != b}


@functools.cache
def _names(target: type) -> frozenset[str]:
    """The options of a target."""
    return frozenset(f"target.{field.name}" for field in dataclasses.fields(target))


@functools.cache
def _defaults(target: type) -> dict[str, Any]:
    """The defaults of all options that have one."""
    specs = {"": RunConfig} | {f"{group}.": spec for group, spec in SPECS.items()}
    defaults = {
        prefix + field.name: default_of(field)
        for prefix, spec in (specs | {"target.": target}).items()
        for field in dataclasses.fields(spec)
    }
    return {name: value for name, value in defaults.items() if value is not dataclasses.MISSING}
