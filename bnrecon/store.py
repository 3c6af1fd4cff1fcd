"""Where files lie: run folders named by content, atomic writes, locks, digests. Nothing here is ever unpickled."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import re
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from bnrecon.errors import UserError

__all__ = [
    "Damaged",
    "claimed",
    "content_key",
    "differences",
    "exclusive",
    "plain",
    "read_json",
    "read_tensors",
    "remove_leftovers",
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


class Damaged(ValueError):
    """A file that is not what was written: the message names it, and how that is known."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside, flush to disk, then rename: a reader sees the old file or the whole new one, whatever is killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Whose it is stands in the name, so that what a killed process left is known to be nobody's.
    name = f".{path.name[:100]}.{_host()}-{os.getpid()}."
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=name, suffix=".part")
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


def _host() -> str:
    return re.sub(r"[^\w]", "", socket.gethostname())


DAY = 86_400  # seconds after which a half-written file is nobody's, whichever machine it came from


def remove_leftovers(folder: Path) -> None:
    """Remove files below ``folder`` that a killed process was writing: of this machine when it is gone, of others after a day."""
    for left in folder.rglob(".*.part"):
        writer = re.search(r"\.([^.]*)-(\d+)\.[^.]*\.part$", left.name)
        with contextlib.suppress(OSError):  # removed by another process that looks, or not ours to remove
            here = writer is not None and writer[1] == _host()
            gone = not Path(f"/proc/{writer[2]}").exists() if here and Path("/proc").is_dir() else False
            if gone or time.time() - left.stat().st_mtime > DAY:
                left.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, with a digest of its content that ``read_json`` checks."""
    body = dict(content) | {"digest": content_key(plain(content))}
    write_bytes(path, (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode())


def plain(content: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping as it comes back from JSON: tuples as lists, keys as words."""
    return json.loads(json.dumps(content))


def read_json(path: Path) -> dict[str, Any]:
    """Read what ``write_json`` wrote.

    Raises ``Damaged`` naming the file where it is damaged or cannot be read, ``FileNotFoundError`` where there is none.
    """
    with _reading(path):
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
        digest = content.pop("digest")
    if digest != content_key(content):
        raise Damaged(f"{path} is damaged (its digest does not match)")
    return content


def _no_number(word: str) -> None:
    raise ValueError(f"{word} in the place of a number")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Say of whatever goes wrong while a file is read that the file is damaged."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error.strerror})") from None
    except (SafetensorError, KeyError, ValueError, RuntimeError, AttributeError, TypeError) as error:
        raise Damaged(f"{path} is damaged ({error.__class__.__name__})") from None


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
    """Read what ``write_tensors`` wrote; raise ``Damaged`` naming the file where it is damaged or cannot be read."""
    with _reading(path):
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        text, digest = metadata["about"], metadata["digest"]
        about = json.loads(text)
    if digest != hashlib.sha256((tensor_digest(tensors) + text).encode()).hexdigest():
        raise Damaged(f"{path} is damaged (its digest does not match)")
    return tensors, about


def set_aside(path: Path, reason: Exception | str) -> None:
    """Say that a file is damaged and move it to ``<name>.damaged``, so that it is redone and still can be looked at.

    To be called while its folder's lock is held: a process that looked before may find it repaired by now.
    """
    aside = path.with_name(path.name + ".damaged")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    with contextlib.suppress(FileNotFoundError):  # another process has set it aside by now
        os.replace(path, aside)
        print(f"{reason}; set aside as {aside.name} and redone", file=sys.stderr)


@contextlib.contextmanager
def claimed(path: Path, waiting: Callable[[], str] | None = None) -> Iterator[bool]:
    """Hold the lock file ``path`` for the block, whose value is whether it is held.

    Where another process holds it: say what ``waiting`` gives and wait, or without it take no for an answer. The lock is the operating
    system's: it falls when its holder is killed, so nothing stale is ever left.

    Raises ``UserError`` where the folder cannot be written, or lies on a file system without such locks: a lock that is merely a file
    would outlive its holder, and others would wait for ever.
    """
    lock = filelock.FileLock(path, fallback_to_soft=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except filelock.Timeout:
        if waiting is None:
            yield False
            return
        print(waiting(), file=sys.stderr, flush=True)
        lock.acquire()
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
            raise UserError(
                f"{path.parent} is on a file system without file locks ({error.strerror}), by which processes keep out of each other's "
                "way: give outputs=FOLDER on another, a local disk say, and copy the results from there"
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ENOENT, errno.EEXIST):
            raise UserError(
                f"{path.parent} cannot be written ({error.strerror}); give outputs=FOLDER, a folder of yours"
            ) from None
        raise
    try:
        yield True
    finally:
        lock.release()


@contextlib.contextmanager
def exclusive(folder: Path, purpose: str) -> Iterator[None]:
    """Hold a folder's lock for the block. A second process waits and says for what and for whom."""
    holder = folder / ".holder"

    def waiting() -> str:
        try:
            who = holder.read_text(encoding="utf-8", errors="replace")[:100].strip()
        except OSError:
            who = ""
        return f"waiting for {who or 'another process'} to finish {purpose}"

    with claimed(folder / ".lock", waiting):
        for left in folder.rglob(".*.part"):  # by a process killed while writing; nobody else writes here now
            left.unlink(missing_ok=True)
        write_text(holder, f"process {os.getpid()} on {socket.gethostname()}")
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
