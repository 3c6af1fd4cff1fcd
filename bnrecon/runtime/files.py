"""Files that can be trusted: written whole or not at all, read with their digests checked. Nothing here is ever unpickled."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes

from bnrecon.runtime.digests import content_key, plain, tensor_digest

__all__ = [
    "Damaged",
    "is_text",
    "read_json",
    "read_tensors",
    "remove_leftovers",
    "require_regular",
    "set_aside",
    "sound",
    "write_bytes",
    "write_json",
    "write_tensors",
    "write_text",
]


T = TypeVar("T")


class Damaged(ValueError):
    """A file that is not what was written: the message names it, and how that is known."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write beside, flush to disk, then rename: a reader sees the old file or the whole new one, whatever is killed.

    Raises ``OSError`` that names ``path``.
    """
    # Whose it is stands in the name, so that what a killed process left is known to be nobody's.
    name, temporary = f".{path.name[:100]}.{_host()}-{os.getpid()}.", None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=name, suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def _host() -> str:
    return re.sub(r"[^\w]", "", socket.gethostname())


DAY = 86_400  # seconds after which a half-written file is nobody's, whichever machine it came from


def remove_leftovers(folder: Path) -> None:
    """Remove files below ``folder`` that a killed process was writing: of this machine when it is gone, of others after a day."""
    for left in folder.rglob(".*.part"):
        writer = re.search(r"\.([^.]*)-(\d+)\.[^.]*\.part$", left.name)
        with contextlib.suppress(
            OSError
        ):  # removed by another process that looks, or not ours to remove
            here = writer is not None and writer[1] == _host()
            gone = (
                not Path(f"/proc/{writer[2]}").exists()
                if here and Path("/proc").is_dir()
                else False
            )
            if gone or time.time() - left.stat().st_mtime > DAY:
                left.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, with a digest of its content that ``read_json`` checks."""
    body = dict(content) | {"digest": content_key(plain(content))}
    write_bytes(path, (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode())


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
        require_regular(path)
        yield
    except (FileNotFoundError, Damaged):
        raise
    except OSError as error:
        raise Damaged(f"{path} cannot be read ({error.strerror})") from None
    except (
        SafetensorError,
        KeyError,
        ValueError,
        RuntimeError,
        AttributeError,
        TypeError,
    ) as error:
        raise Damaged(f"{path} is damaged ({error.__class__.__name__})") from None


def require_regular(path: Path) -> None:
    """Raise ``Damaged`` for what would be read for ever, a pipe or a device, and for a folder or a link that leads nowhere.

    Raises ``FileNotFoundError`` where there is nothing.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise Damaged(f"{path} is a link that leads nowhere") from None
        raise
    if not stat.S_ISREG(mode):
        raise Damaged(f"{path} is no regular file")


def is_text(path: Path, text: str) -> bool:
    """Whether a file holds this text and nothing else."""
    try:
        require_regular(path)
        return path.read_bytes() == text.encode()
    except (OSError, Damaged):
        return False


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]
) -> None:
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


def sound(path: Path, read: Callable[[Path], T], mend: bool = False) -> T | None:
    """What ``read`` makes of a file; ``None`` where it is not there, or damaged.

    ``mend``: name a damaged one and set it aside; its folder's lock must be held.
    """
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        if mend:
            set_aside(path, error)
        return None


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
