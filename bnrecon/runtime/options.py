"""Options of a spec: default, meaning and allowed values, checked when a spec is made.

The specs are dataclasses with fields made by ``option``. ``check_fields`` (in ``__post_init__``)
and the command line's help and completion read the metadata.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import numbers
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from bnrecon.runtime.errors import RunError, UserError, require_choice

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word"}


def option(default: Any = dataclasses.MISSING, help: str = "", **allowed: Any) -> Any:
    """A dataclass field with its meaning and limits; without a default the field is required.

    Args:
        default: the default; of a list or dict, each spec has a copy.
        help: the meaning in one sentence, for the command line's help.
        allowed: any of ``allowed`` (a tuple of values), ``above``, ``below``, ``at_least``,
            ``at_most`` (numbers), ``folder=True`` (a folder's name) and ``file_name=True`` (a part
            of a folder's name).

    >>> @dataclasses.dataclass
    ... class Spec:
    ...     rate: float = option(0.1, "the learning rate", above=0)
    ...     __post_init__ = check_fields
    >>> Spec(rate=-1)
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: rate=-1: must be above 0
    """
    metadata = {"help": help, **allowed}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@functools.cache
def field_types(spec: type) -> dict[str, tuple[type, ...]]:
    """The types that each field of a dataclass allows; ``NoneType`` if it may be unset.

    >>> field_types(dataclasses.make_dataclass("Spec", [("side", int | None, None)]))
    {'side': (<class 'int'>, <class 'NoneType'>)}
    """
    hints = typing.get_type_hints(spec)
    return {
        field.name: tuple(typing.get_origin(kind) or kind for kind in _members(hints[field.name]))
        for field in dataclasses.fields(spec)
    }


def check_fields(spec: Any) -> None:
    """Check the fields of a spec against their types and limits.

    Raises:
        UserError: a value is not allowed; the message names the first such field.
    """
    kind: Any = type(spec)
    kinds = field_types(kind)
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if value is None and types.NoneType in kinds[field.name]:
            continue
        _check_type(field.name, value, kinds[field.name])
        _check_limits(field.name, value, field.metadata)


def checked(name: str, value: Any, kind: type, **limits: Any) -> Any:
    """Check a number passed to a function; return it as a ``kind``. ``limits`` as in ``option``.

    Raises:
        UserError: it has another type, or is beyond its limits.

    >>> checked("width", 3, int, at_least=1)
    3
    """
    _check_type(name, value, (kind,))
    _check_limits(name, value, limits)
    return kind(value)


def checked_seed(seed: Any) -> int:
    """``checked`` for a seed: 0 to 2^63 - 1."""
    return checked("seed", seed, int, at_least=0, below=2**63)


@contextlib.contextmanager
def reworded(reword: Callable[[str], str]) -> Iterator[None]:
    """Change the message of a ``UserError`` or ``RunError``, which remains the same object.

    >>> with reworded(lambda line: prefix_fields(line, "train.", ["lr"])):
    ...     raise UserError("lr=0: must be above 0")
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: train.lr=0: must be above 0
    """
    try:
        yield
    except (UserError, RunError) as error:
        error.args = (reword(str(error)),)
        raise


def labelled(label: str) -> contextlib.AbstractContextManager[None]:
    """Begin the message of such an error with a label."""
    return reworded(lambda line: f"{label}: {line}")


def prefix_fields(line: str, prefix: str, names: Iterable[str]) -> str:
    """Add a prefix to the fields that a line names.

    >>> prefix_fields("take more features (excess=5)", "features.", ["excess"])
    'take more features (features.excess=5)'
    """
    # Not inside a path or a quoted value, nor after another prefix.
    pattern = rf"(?<![\w.=/'\"-])({'|'.join(sorted(names))})(?==)"
    return re.sub(pattern, lambda match: f"{prefix}{match[1]}", line)


def check_path(name: str, folder: str) -> None:
    """Raise ``UserError`` for a text that cannot name a folder, or that JSON files cannot hold."""
    if not folder or "\0" in folder:
        raise UserError(f"{name}={folder!r}: give a path")
    try:
        folder.encode()
    except UnicodeEncodeError:
        advice = "not UTF-8; rename it, or set PYTHONUTF8=1 to have names read as UTF-8"
        raise UserError(f"{name}={folder!r}: {advice}") from None


def _members(hint: Any) -> tuple[Any, ...]:
    union = isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
    return typing.get_args(hint) if union else (hint,)


def _check_type(name: str, value: object, kinds: tuple[type, ...]) -> None:
    """Whole numbers are numbers too; true and false are neither."""
    for kind in kinds:
        expected = {int: numbers.Integral, float: numbers.Real}.get(kind, kind)
        if isinstance(value, expected) and (kind is bool or not isinstance(value, bool)):
            return
    allowed = " or ".join(KINDS.get(kind, kind.__name__) for kind in kinds if kind in KINDS)
    raise UserError(f"{name}={value!r}: must be {allowed or kinds[0].__name__}")


def limits_text(limits: Mapping[str, Any]) -> str:
    """The limits of an option in words, empty if there are none.

    >>> limits_text({"at_least": 0, "below": 1}), limits_text({"above": 0})
    ('at least 0 and below 1', 'above 0')
    """
    words = {"above": "above", "at_least": "at least", "below": "below", "at_most": "at most"}
    bounds = [f"{text} {limits[name]:,}" for name, text in words.items() if name in limits]
    return " and ".join(bounds)


def _check_limits(name: str, value: Any, limits: Mapping[str, Any]) -> None:
    for key, entry in value.items() if isinstance(value, dict) else ():
        _check_limits(f"{name}.{key}", entry, {})
    numeric = isinstance(value, numbers.Real)
    if numeric and not (
        limits.get("above", -math.inf) < value < limits.get("below", math.inf)
        and limits.get("at_least", -math.inf) <= value <= limits.get("at_most", math.inf)
    ):
        raise UserError(f"{name}={value}: must be {limits_text(limits) or 'finite'}")
    for entry in value if isinstance(value, list) else [value]:
        if "allowed" in limits:
            require_choice(f"{name}=", entry, limits["allowed"])
    if limits.get("folder"):
        check_path(name, value)
    if limits.get("file_name") and not re.fullmatch(r"[^/\0\ud800-\udfff]{1,60}", value):
        advice = "this is part of a folder's name; give 1 to 60 characters, none of them /"
        raise UserError(f"{name}={value[:80]!r}: {advice}")
