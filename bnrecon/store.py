"""Where files lie: run folders named by content, atomic writes, locks, digests. Nothing here is ever unpickled."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

__all__ = [
    "claimed",
    "content_key",
    "differences",
    "exclusive",
    "read_json",
    "read_tensors",
    "set_aside",
    "shared",
    "tensor_digest",
    "write_bytes",
    "write_json",
    "write_tensors",
    "write_text",
]


def differences(config: Any, volatile: frozenset[str] = frozenset(), prefix: str = "") -> dict[str, Any]:
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
        default = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        if value != default:
            found[name] = value
    return found


def content_key(content: Mapping[str, Any]) -> str:
    """Hash a JSON-like mapping to ten hexadecimal digits, independent of the order of its keys.

    >>> content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})
    True
    """
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside, flush to disk, then rename: a reader sees the old file or the whole new one, whatever is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, with a digest of its content that ``read_json`` checks."""
    body = dict(content) | {"digest": content_key(_plain(content))}
    write_bytes(path, (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode())


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(content))


def read_json(path: Path) -> dict[str, Any]:
    """Read what ``write_json`` wrote; raise ``ValueError`` naming the file where it is damaged."""
    try:
        content = json.loads(path.read_text())
        digest = content.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error.__class__.__name__})") from None
    if digest != content_key(content):
        raise ValueError(f"{path} is damaged (its digest does not match)")
    return content


def tensor_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes of tensors, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]) -> None:
    """Write tensors and a JSON-like description as one safetensors file, atomically and with a digest of both."""
    # A copy each: tied weights share memory, which safetensors does not write.
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(about, sort_keys=True)
    digest = hashlib.sha256((tensor_digest(tensors) + text).encode()).hexdigest()
    write_bytes(path, to_bytes(tensors, {"about": text, "digest": digest}))


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read what ``write_tensors`` wrote; raise ``ValueError`` naming the file where it is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        text, digest = metadata["about"], metadata["digest"]
    except (SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged ({error.__class__.__name__})") from None
    if digest != hashlib.sha256((tensor_digest(tensors) + text).encode()).hexdigest():
        raise ValueError(f"{path} is damaged (its digest does not match)")
    return tensors, json.loads(text)


def set_aside(path: Path, reason: Exception | str) -> None:
    """Say that a file is damaged and move it to ``<name>.damaged``, so that it is redone and still can be looked at."""
    print(f"{reason}; set aside as {path.name}.damaged and redone", file=sys.stderr)
    os.replace(path, path.with_name(path.name + ".damaged"))


@contextlib.contextmanager
def claimed(path: Path, waiting: Callable[[], str] | None = None) -> Iterator[bool]:
    """Hold the lock file ``path`` for the block, whose value is whether it is held.

    Where another process holds it: say what ``waiting`` gives and wait, or without it take no for an answer. The lock is the operating
    system's: it falls when its holder is killed, so nothing stale is ever left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(path)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        if waiting is None:
            yield False
            return
        print(waiting(), file=sys.stderr, flush=True)
        lock.acquire()
    try:
        yield True
    finally:
        lock.release()


@contextlib.contextmanager
def exclusive(folder: Path, purpose: str) -> Iterator[None]:
    """Hold a folder's lock for the block. A second process waits and says for what and for whom."""
    holder = folder / ".holder"

    def waiting() -> str:
        return f"waiting for {holder.read_text() if holder.exists() else 'another process'} to finish {purpose}"

    with claimed(folder / ".lock", waiting):
        for left in folder.glob(".*.part"):  # by a process killed while writing; nobody else writes here now
            left.unlink(missing_ok=True)
        holder.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield


def shared(names: Iterable[str], locks: Path) -> Iterator[str]:
    """Share work between processes: yield each name while its lock is held, first those that nobody has, then the others.

    A name comes to every process, to the later ones when it is done or its holder died: ask then whether it is done.
    """
    left = list(names)
    for waiting in (None, lambda: "waiting for another process that shares this work"):
        for name in list(left):
            with claimed(locks / content_key({"name": name}), waiting) as mine:
                if mine:
                    left.remove(name)
                    yield name
