"""Digests: of what differs from the defaults, of JSON-like content, of tensors."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

__all__ = ["content_key", "differences", "plain", "tensor_digest"]


def differences(
    config: Any, volatile: frozenset[str] = frozenset(), prefix: str = ""
) -> dict[str, Any]:
    """List what a dataclass says beyond its defaults, by dotted name, leaving out the ``volatile`` names.

    A field without a default always counts. What equals its default does not, so that an option added later leaves the
    names of old runs as they are.
    """
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        name, value = prefix + field.name, getattr(config, field.name)
        if name in volatile:
            continue
        if dataclasses.is_dataclass(value):
            found |= differences(value, volatile, name + ".")
            continue
        default = (
            field.default_factory()
            if field.default_factory is not dataclasses.MISSING
            else field.default
        )
        if value != default:
            found[name] = value
    return found


def content_key(content: Mapping[str, Any]) -> str:
    """Hash a JSON-like mapping to ten hexadecimal digits, independent of the order of its keys.

    >>> content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping as it comes back from JSON: tuples as lists, keys as words."""
    return json.loads(json.dumps(content))


def tensor_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()
