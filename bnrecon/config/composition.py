"""From the command line's overrides to a checked configuration."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.resources
import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType, Quote, QuotedString
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bnrecon.config.explanation import explain
from bnrecon.config.schema import (
    GROUPS,
    SPECS,
    RunConfig,
    field_names,
    register_choices,
    register_schema,
    spec_classes,
)
from bnrecon.runtime.errors import UserError, nearest
from bnrecon.runtime.options import prefix_fields, reworded

SEPARATE = ("features", "solver")  # groups that only an experiment's choice changes
LITERALS = ("null", "true", "false", "nan", "inf")  # words of the grammar that are no text
FOLDERS = ("outputs", "targets", "tracker_folder", "data.root", "hydra.sweep.dir")


def from_hydra(composed: DictConfig) -> RunConfig:
    """Make the specs from Hydra's configuration; each checks its values.

    Raises:
        UserError: a value is not possible; the message has its name on the command line.
    """
    _reject_unknown(composed, RunConfig, "")
    try:
        values: Any = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
        specs: dict[str, Any] = {}
        for group in SPECS:
            with option_names(group):
                specs[group] = OmegaConf.to_object(composed[group])
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from None
    return RunConfig(**(values | specs))


def option_names(group: str) -> AbstractContextManager[None]:
    """In a ``UserError`` or ``RunError``, name a spec's fields as on the command line.

    >>> with option_names("train"):
    ...     raise UserError("lr=0: must be above 0")
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: train.lr=0: must be above 0
    """
    return reworded(functools.partial(rename_fields, group))


def rename_fields(group: str, line: str) -> str:
    """Name a spec's fields in a line as on the command line.

    A choice has no ``.name``, as in ``data=folder``.

    >>> rename_fields("features", "take more features (oversampling=1.5)")
    'take more features (features.oversampling=1.5)'
    """
    names = {name for kind in spec_classes(group) for name in field_names(kind)}
    line = prefix_fields(line, f"{group}.", names)
    return line if group == "target" else line.replace(f"{group}.name=", f"{group}=")


def compose(overrides: Sequence[str]) -> RunConfig:
    """The configuration that ``bnrecon run OVERRIDES`` would run.

    Raises:
        UserError: the overrides are not valid.
    """
    return copy.deepcopy(_composed(tuple(overrides)))


# A study composes each of its cells several times, and Hydra takes 0.1 s.
@functools.lru_cache(maxsize=1024)
def _composed(overrides: tuple[str, ...]) -> RunConfig:
    register_choices(overrides)
    choices = [word for word in overrides if word.partition("=")[0] in GROUPS]
    composed = _by_groups(choices, [word for word in overrides if word not in choices])
    return from_hydra(_compose(overrides)) if composed is None else composed


@functools.lru_cache(maxsize=256)
def _compose(overrides: tuple[str, ...]) -> DictConfig:
    """Compose configs/run.yaml with Hydra."""
    register_schema()
    with hydra.initialize_config_module("bnrecon.configs", version_base="1.3"):
        try:
            return hydra.compose("run", overrides=as_overrides(overrides))
        except Exception as error:  # also Python's, which Hydra does not catch
            raise UserError(explain(error)) from None


def _by_groups(choices: Sequence[str], values: Sequence[str]) -> RunConfig | None:
    """The same, faster if many cells share groups: values are set last, as by Hydra.

    Other choices do not change chosen features and solvers. Returns ``None``, to be composed by
    Hydra, for overrides that are not only choices and values, or not possible.
    """
    chosen = {word.partition("=")[0]: word for word in choices}
    if "experiment" in chosen:  # it sets values of every group
        return None
    others = tuple(sorted(word for group, word in chosen.items() if group not in SEPARATE))
    by_group: dict[str, list[str]] = {group: [] for group in ("", *SPECS)}
    for word in values:
        group = word.partition("=")[0].partition(".")[0]
        by_group[group if group in SPECS else ""].append(word)
    try:
        parts = {}
        for group, words in by_group.items():
            apart = chosen.get(group) if group in SEPARATE else None
            parts[group] = _part(group, apart, () if apart else others, tuple(words))
        return RunConfig(**parts.pop(""), **parts)
    except Exception:  # Hydra comes next, and has the message
        return None


@functools.lru_cache(maxsize=1024)
def _part(group: str, apart: str | None, choices: tuple[str, ...], values: tuple[str, ...]) -> Any:
    """A group's spec, not to be modified; for "" the options without a group.

    For a choice ``apart`` from the others, its group's file is complete.
    """
    parsed = OverridesParser.create().parse_overrides(as_overrides(values))
    plain = all(o.type is OverrideType.CHANGE and not o.is_sweep_override() for o in parsed)
    if not plain or any("${" in word for word in values):
        raise ValueError("not values alone, or the value of another group")
    if apart is None:
        composed = _compose(choices)
        _reject_unknown(composed, RunConfig, "")
        top = [str(name) for name in composed if name not in SPECS]
        part = copy.deepcopy(composed[group] if group else OmegaConf.masked_copy(composed, top))
    else:
        name = apart.partition("=")[2]
        if not re.fullmatch(r"\w+", name):  # not a path
            raise ValueError("not a choice's plain name")
        file = importlib.resources.files("bnrecon.configs") / group / f"{name}.yaml"
        chosen: Any = OmegaConf.create(file.read_text(encoding="utf-8"))
        if chosen.pop("defaults") != ["schema", "_self_"]:
            raise ValueError("more than its group's spec and its own values")
        part = OmegaConf.merge(OmegaConf.structured(SPECS[group]), chosen)
    for override in parsed:
        key = override.key_or_group.removeprefix(f"{group}.")
        OmegaConf.update(part, key, override.value(), merge=True)
    if group:
        return OmegaConf.to_object(part)
    return OmegaConf.to_container(part, resolve=True, throw_on_missing=True)


def check_config_dir(folder: Path) -> None:
    """Raise ``UserError`` if a user's folder is missing, or Hydra would not read one of its files.

    Of two files of one name Hydra reads the shipped one.
    """
    if not folder.is_dir():
        raise UserError(f"--config-dir={folder}: no such folder")
    shipped = importlib.resources.files("bnrecon.configs")
    for group in ("", *GROUPS):
        for file in sorted((folder / group).glob("*.yaml")):
            if (shipped / group / file.name).is_file():
                path = f"{group}/{file.name}".lstrip("/")
                fault = f"bnrecon has a {path} too and reads its own"
                raise UserError(f"--config-dir={folder}: {fault}; rename yours")


def as_overrides(words: Sequence[str], sweep: bool = False) -> list[str]:
    """Quote folders and the choices of groups, so that Hydra's grammar reads them as plain text.

    A leading ``~`` is the home folder. Quoted text is not changed. In a ``sweep`` commas separate
    values, and values with quotes or brackets are left to the grammar.

    >>> as_overrides(["data.root=größe", "target=18", "seeds=[0,1]"])
    ["data.root='größe'", "target='18'", 'seeds=[0,1]']
    """
    return [_as_override(word, sweep) for word in words]


def _as_override(word: str, sweep: bool) -> str:
    name, equals, value = word.partition("=")
    if not name.strip("+~"):
        raise UserError(f"{word!r}: an option has no name; write name=value, as in target=vgg18")
    if name.lstrip("+") == "tracker" and equals and not value.startswith("["):
        return f"{name}=[{'' if value == 'null' else value}]"  # a single value is a list too
    if name.lstrip("+") not in (*FOLDERS, *GROUPS) or (sweep and re.search("""[('"]""", value)):
        return word
    quoted = _folder if name.lstrip("+") in FOLDERS else _choice
    return f"{name}{equals}{','.join(map(quoted, value.split(',') if sweep else [value]))}"


def _folder(text: str) -> str:
    """A folder's name in quotes."""
    if text == "null" or re.fullmatch(r"""'([^'\\]|\\.)*'|"([^"\\]|\\.)*"|""", text, re.DOTALL):
        return text
    if re.match("~(/|$)", text):
        if os.path.expanduser("~") == "~":
            raise UserError(f"{text}: you have no home folder; write the folder's name in full")
        text = os.path.expanduser(text)
    return QuotedString(text, Quote.single).with_quotes()


def _choice(text: str) -> str:
    """The name of a group's yaml, quoted if the grammar would not read it as text."""
    named = re.fullmatch(r"[A-Za-z_][\w./@-]*", text, re.ASCII)
    plain = named and text.lower() not in LITERALS
    return text if plain else _folder(text) if text != "null" else "'null'"


def _reject_unknown(node: DictConfig, schema: type, prefix: str) -> None:
    """Raise ``UserError`` for unknown keys: Hydra lets `+target.extra=3` past a schema."""
    allowed = [field.name for field in dataclasses.fields(schema)]
    for name in node:
        if name not in allowed:
            full = prefix + str(name)
            raise UserError(
                f"{full} is not an option: {nearest(full, [prefix + word for word in allowed])}"
            )
        child = node._get_node(name)
        if not isinstance(child, DictConfig):
            continue
        kind = OmegaConf.get_type(child)
        if kind is not None and dataclasses.is_dataclass(kind):
            _reject_unknown(child, kind, f"{prefix}{name}.")
