"""Digests of options that differ from the defaults, of JSON-like content, and of tensors."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import torch


def differences_from_defaults(
    config: Any, volatile: frozenset[str] = frozenset(), prefix: str = ""
) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults, by dotted name.

    A field without a default is always included, and so is ``name``, which the other options
    belong to. Fields at their default are not, so that an option that is added later does not
    change the names of old runs. Nested dataclasses are traversed; ``volatile`` dotted names are
    skipped.
    """
    differences: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if name in volatile:
            continue
        if dataclasses.is_dataclass(value):
            differences |= differences_from_defaults(value, volatile, name + ".")
            continue
        if value != default_of(field) or field.name == "name":
            differences[name] = value
    return differences


def default_of(field: dataclasses.Field) -> Any:
    """The default of a dataclass's field, ``dataclasses.MISSING`` if it has none."""
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def dotted(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested options by dotted name, as in ``train.lr``."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def content_key(content: Mapping[str, Any]) -> str:
    """Hash a JSON-like mapping to ten hexadecimal digits, independent of the order of its keys.

    >>> content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def json_values(content: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping as JSON returns it: tuples as lists, keys as strings."""
    return json.loads(json.dumps(content))


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tensor_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of tensors, in the order of their names."""
    return parts_digest((name, (t.shape, t.dtype), [t]) for name, t in sorted(tensors.items()))


def parts_digest(
    tables: Iterable[tuple[str, tuple[Sequence[int], torch.dtype], Iterable[torch.Tensor]]],
) -> str:
    """``tensor_digest`` of tables in parts: each has a name, a shape and type, and its numbers."""
    import torch  # takes seconds; reading JSON does without

    digest = hashlib.sha256()
    for name, (shape, dtype), parts in tables:
        digest.update(f"{name} {dtype} {tuple(shape)};".encode())
        for part in parts:
            numbers = part.detach().cpu().contiguous().reshape(-1)
            digest.update(numbers.view(torch.uint8).numpy().data)
    return digest.hexdigest()
