"""Write files atomically, and check their digests when reading; no pickle is read."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from safetensors import SafetensorError, safe_open

from bnrecon.runtime.digests import content_key, json_values, tensor_digest
from bnrecon.runtime.errors import RunError, lacks_memory

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Damaged(ValueError):
    """A file that differs from what was written; the message names it and the evidence."""


class Unreadable(Damaged):
    """A file that cannot be read now, for lack of a permission or memory, say.

    It may be intact. Results are shown without it, and it is never recomputed or moved.
    """


def write_bytes(path: Path, *parts: bytes | memoryview) -> None:
    """Write a temporary file, flush it to disk, rename it: readers see the old or the new file.

    A link to a file is followed, as by ``open``. An existing file keeps its permissions; the umask
    decides those of a new one.

    Raises:
        OSError: with the name of ``path``, not of the temporary file; also if ``path`` is not a
            regular file.
    """
    start = path.name.encode()[:100].decode(errors="ignore")  # file systems limit bytes
    temporary = None
    try:
        target = resolve_target(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{start}.bnrecon-{secrets.token_hex(4)}.part")
        with open(temporary, "xb") as file:
            with contextlib.suppress(FileNotFoundError):
                shutil.copymode(target, temporary)
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def resolve_target(path: Path) -> Path:
    """The file that ``write_bytes`` writes, with links resolved.

    Raises:
        FileExistsError: it is not a regular file, or a broken link.
        PermissionError: it is a link to a file that must not be written, as in a cache.
    """
    target = Path(os.path.realpath(path))
    if os.path.lexists(path) and not target.is_file():
        reason = "Only files are overwritten, and this is none; give another name"
        raise FileExistsError(errno.EEXIST, reason, str(path))
    if path.is_symlink() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    return target


DAY = 86_400  # seconds after which a partial file counts as abandoned


def remove_partial_files(folder: Path, age: float = DAY) -> None:
    """Remove partial files below ``folder`` of this age in seconds: their process was killed."""
    for path in folder.rglob(".*.bnrecon-????????.part"):
        # Another process may remove the same file, or this one may lack the permission.
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > age:
                path.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, with a digest of its content that ``read_json`` checks."""
    body = dict(content) | {"digest": content_key(json_values(content))}
    write_bytes(path, (json.dumps(body, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path, make: Callable[[dict[str, Any]], Any] = dict) -> Any:
    """Read what ``write_json`` wrote: a dictionary, converted by ``make``.

    Raises:
        Damaged: the file is damaged, cannot be read, or ``make`` does not accept it; the message
            names it.
        FileNotFoundError: there is no such file.
    """
    with _reading(path):
        content = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_number)
        digest = content.pop("digest")
    if digest != content_key(content):
        raise Damaged(f"{path} is damaged (its digest does not match)")
    try:
        return make(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise Damaged(
            f"{path} was written by another version of bnrecon, or by something else ({reason})"
        ) from None


class Stored:
    """An object stored in a JSON file; its class says how to make it from the content."""

    from_json: Callable[[Any], Any]

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read its file, such as ``result.json`` of a finished run.

        Raises:
            Damaged: it is damaged, or was written by another version.
            FileNotFoundError: there is none.
        """
        return read_json(Path(path), cls.from_json)


BROKEN = (SafetensorError, KeyError, ValueError, RuntimeError, AttributeError, TypeError)


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number in JSON")


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise ``Damaged`` for any error while a file is read."""
    try:
        require_regular(path)
        yield
    except (FileNotFoundError, Damaged):
        raise
    except OSError as error:
        kind = Damaged if error.errno == errno.ELOOP else Unreadable  # a link to itself
        raise kind(f"{path} cannot be read ({error.strerror})") from None
    except (MemoryError, *BROKEN) as error:
        if lacks_memory(error):
            raise Unreadable(f"{path} cannot be read (not enough memory)") from None
        raise Damaged(f"{path} is damaged ({error.__class__.__name__})") from None


def require_regular(path: Path) -> None:
    """Check that a path is a regular file: reading a pipe or a device might never end.

    Raises:
        Damaged: it is a folder, a pipe, a device or a broken link.
        FileNotFoundError: there is no such path.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        if path.is_symlink():
            raise Damaged(f"{path} is a link that leads nowhere") from None
        raise
    if not stat.S_ISREG(mode):
        raise Damaged(f"{path} is not a regular file")


def find(folder: Path, pattern: str) -> list[Path]:
    """The sorted paths below a folder that match a pattern whose last part is a name.

    Unlike with ``glob``, broken links and inaccessible paths match: reading them reports them.
    """
    above, _, name = pattern.rpartition("/")
    folders = folder.glob(above) if above else [folder]
    return sorted(path for path in (each / name for each in folders) if not _is_missing(path))


def _is_missing(path: Path) -> bool:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


def state(path: Path) -> tuple[int, int, int] | None:
    """A file's inode, time and size, which change with its content; ``None`` if it is missing."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # a name may hold what no file's does
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def has_text(path: Path, text: str) -> bool:
    """Whether a file holds exactly this text."""
    try:
        require_regular(path)
        return path.read_bytes() == text.encode()
    except (OSError, Damaged):
        return False


def write_tensors(
    path: Path, tensors: Mapping[str, torch.Tensor], about: Mapping[str, Any]
) -> None:
    """Write tensors and JSON-like metadata as one safetensors file, with a digest of both.

    The same tensors and metadata give the same bytes.
    """
    from safetensors.torch import save as to_bytes  # loads torch, which takes seconds

    unshared: dict[str, torch.Tensor] = {}
    addresses: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        # Tied weights share memory, which safetensors refuses.
        unshared[name] = tensor.clone() if address in addresses else tensor
        addresses.add(address)
    text = json.dumps(about, sort_keys=True)
    digest = hashlib.sha256((tensor_digest(unshared) + text).encode()).hexdigest()
    content = to_bytes(unshared, {"about": text, "digest": digest})
    data = 8 + int.from_bytes(content[:8], "little")
    # A view: the weights of a large network are copied as rarely as possible.
    write_bytes(path, _sorted_header(content[8:data]), memoryview(content)[data:])


def _sorted_header(header: bytes) -> bytes:
    """A safetensors header with its size, and sorted metadata: their order differs by process."""
    content = json.loads(header)
    content["__metadata__"] = dict(sorted(content["__metadata__"].items()))
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read what ``write_tensors`` wrote: the tensors by name, and the metadata.

    Tensors are copied out of the file: products with a vector that is not aligned as torch's
    tensors are (to 64 bytes) may round differently, so that an interrupted solve would end with
    other numbers than an uninterrupted one.

    Raises:
        Damaged: the file is damaged or cannot be read; the message names it.
        FileNotFoundError: there is no such file.
    """
    with _reading(path):
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if not metadata.keys() >= {"about", "digest"}:
                raise Damaged(f"{path} was not written by bnrecon")
            names = file.keys()
            tensors = {name: file.get_tensor(name).clone() for name in names}
        text, digest = metadata["about"], metadata["digest"]
        about = json.loads(text)
    if digest != hashlib.sha256((tensor_digest(tensors) + text).encode()).hexdigest():
        raise Damaged(f"{path} is damaged (its digest does not match)")
    return tensors, about


def read_if_valid(
    path: Path, read: Callable[[Path], T], quarantine_damaged: bool = False
) -> T | None:
    """The result of ``read`` for a file; ``None`` if it is missing or ``read`` refuses it.

    With ``quarantine_damaged`` such a file is moved away; its folder's lock must be held.

    Raises:
        RunError: a file to move away cannot be read at all.
    """
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        if quarantine_damaged:
            other = f"{path} was written by another version of bnrecon"
            quarantine(path, error if isinstance(error, Damaged) else other)
        return None


def quarantine(path: Path, reason: Exception | str) -> None:
    """Move a damaged file to ``<name>.damaged``, to recompute it without losing it; log why.

    Hold the folder's lock, and check the file under it: another process may have repaired it.

    Raises:
        RunError: the reason is that the file cannot be read; it is not moved.
    """
    if isinstance(reason, Unreadable):
        raise RunError(f"{reason}; nothing was changed: correct it, or move the file") from None
    aside = path.with_name(path.name + ".damaged")
    number = 1
    while os.path.lexists(aside):  # do not overwrite a broken link either
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{number}")
    with contextlib.suppress(FileNotFoundError):  # another process has moved it by now
        os.replace(path, aside)
        logger.warning("%s; set aside as %s and redone", reason, aside.name)
