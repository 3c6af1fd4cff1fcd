"""From the words of the command line to a checked configuration."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bnrecon.config.checks import check
from bnrecon.config.explanation import explain
from bnrecon.config.schema import GROUPS, RunConfig, register_schema
from bnrecon.runtime.errors import UserError, nearest

__all__ = ["as_overrides", "compose", "from_hydra"]


FOLDERS = ("outputs", "targets", "data.root", "hydra.sweep.dir")


def from_hydra(composed: DictConfig) -> RunConfig:
    """Turn what Hydra composed into the schema's dataclasses, every value checked.

    Raises ``UserError`` with one line for the first impossible value.
    """
    _reject_unknown(composed, RunConfig, "")
    try:
        config = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from None
    check(config)
    return config


def compose(words: Sequence[str]) -> RunConfig:
    """The configuration that ``bnrecon run WORDS`` would run.

    Raises ``UserError`` for words that make none.
    """
    return copy.deepcopy(_composed(tuple(words)))


@functools.lru_cache(
    maxsize=1024
)  # a study asks for each of its cells several times, and Hydra takes a tenth of a second
def _composed(words: tuple[str, ...]) -> RunConfig:
    register_schema()
    with hydra.initialize_config_module("bnrecon.configs", version_base="1.3"):
        try:
            composed = hydra.compose("run", overrides=as_overrides(words))
        except Exception as error:  # Python's own too, where Hydra does not look
            raise UserError(explain(error)) from None
        return from_hydra(composed)


def as_overrides(words: Sequence[str], sweep: bool = False) -> list[str]:
    """Quote folders and the choices of groups, so that Hydra's grammar takes them for plain text.

    ``~`` in front is the home folder. What is quoted already stays. In a ``sweep`` commas part the
    values, and what has quotes or brackets is left to the grammar.

    >>> as_overrides(["data.root=größe", "target=18", "seeds=[0,1]"])
    ["data.root='größe'", "target='18'", 'seeds=[0,1]']
    """
    return [_as_override(word, sweep) for word in words]


def _as_override(word: str, sweep: bool) -> str:
    name, equals, value = word.partition("=")
    if not name.strip("+~"):
        raise UserError(f"{word!r}: an option lacks its name; write name=value, as in target=vgg18")
    if name.lstrip("+") not in (*FOLDERS, *GROUPS) or (sweep and re.search("""[('"]""", value)):
        return word
    quoted = _folder if name.lstrip("+") in FOLDERS else _choice
    return f"{name}{equals}{','.join(map(quoted, value.split(',') if sweep else [value]))}"


def _folder(text: str) -> str:
    """A folder's name between quotes."""
    if text == "null" or re.fullmatch(r"""'([^'\\]|\\.)*'|"([^"\\]|\\.)*"|""", text, re.DOTALL):
        return text
    return QuotedString(
        re.sub(r"^~(?=/|$)", lambda _: str(Path.home()), text), Quote.single
    ).with_quotes()


def _choice(text: str) -> str:
    """The name of a group's yaml, quoted where the grammar would take it for something else."""
    plain = re.fullmatch(r"[A-Za-z_][\w./@-]*", text, re.ASCII) and text.lower() not in (
        "null",
        "true",
        "false",
        "nan",
        "inf",
    )
    return text if plain else _folder(text) if text != "null" else "'null'"


def _reject_unknown(node: DictConfig, schema: type, prefix: str) -> None:
    """Raise ``UserError`` for keys that no schema has: Hydra lets `+target.extra=3` past a schema."""
    allowed = [field.name for field in dataclasses.fields(schema)]
    for name in node:
        if name not in allowed:
            full = prefix + str(name)
            raise UserError(
                f"{full} is not an option: {nearest(full, [prefix + word for word in allowed])}"
            )
        child = node._get_node(name)
        if isinstance(child, DictConfig) and dataclasses.is_dataclass(OmegaConf.get_type(child)):
            _reject_unknown(child, OmegaConf.get_type(child), f"{prefix}{name}.")
