"""Archives of results: from the machine that computed them to another one, and nothing else.

An archive is a zip file of what a study stores below its outputs folder: trained targets, runs,
tasks, benchmarks, and the state of what was interrupted. It holds JSON, safetensors, CSV and text.
``archive.json`` in it has every file's SHA-256. A safetensors file is stored as four planes, its
bytes number 0, 4, 8, ..., then 1, 5, 9, ... and so on: float32 weights so take 84% of their size,
as they are 92%. What is in an archive is checked before anything of it is written.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bnrecon.runtime import files
from bnrecon.runtime.errors import RunError, UserError, first_line, shorten
from bnrecon.runtime.provenance import commit

__all__ = ["Exported", "Imported", "export_results", "import_results"]

MANIFEST = "archive.json"
LIMIT = 16 * 2**20 - 2**16  # bytes of an archive: below 16 MiB
LARGEST = 2**30  # bytes of all files of an archive, unpacked
NAME = r"[^\W_][\w .,=+-]*"

# What an archive may hold, by kind, in the order in which it is packed; nothing else is taken.
# Files of one kind in one folder belong together.
KINDS = {
    "targets": rf"targets/{NAME}/target\.(json|safetensors)",
    "runs": rf"runs/{NAME}/result\.json",
    "tasks": rf"studies/{NAME}/tasks/{NAME}/{NAME}\.json",
    "benchmarks": rf"solvers/{NAME}/bench\.(json|md|csv)|training/{NAME}\.txt",
    "seeds": rf"runs/{NAME}/seed-\d+/result\.json",
    "interrupted trainings": rf"targets/{NAME}/checkpoint\.safetensors",
    "solved layers": rf"runs/{NAME}/seed-\d+/(layer|unfinished)-{NAME}\.safetensors",
}
FINISHED = ("targets", "runs")
STATE = ("seeds", "interrupted trainings", "solved layers")  # of use until there is a result


@dataclass(frozen=True)
class Exported:
    """The files that an archive was made of, and those that it had no room for."""

    files: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class Imported:
    """What came in: files by name, those that were here before, and those that differ."""

    new: tuple[str, ...]
    same: tuple[str, ...]
    kept: tuple[str, ...]

    def text(self) -> str:
        """A line for each kind, with the names of targets and runs, and the number of others."""
        lines = []
        for kind in KINDS:
            if found := [name for name in self.new if kind_of(name) == kind]:
                folders = sorted({Path(name).parent.name for name in found})
                listed = f": {shorten(folders, 8)}" if kind in FINISHED else ""
                count = len(folders) if kind in FINISHED else len(found)
                lines.append(f"{kind:<22}{count}{listed}")
        if self.same:
            lines.append(f"{'here before':<22}{len(self.same)} files, the same")
        return "\n".join(lines or ["nothing new"])


def kind_of(name: str) -> str | None:
    """The kind of a file, by its path below the outputs folder; ``None`` for no result.

    >>> kind_of("targets/digits-mlp-0123456789/target.json")
    'targets'
    >>> kind_of("targets/../target.json") is None
    True
    """
    return next((kind for kind in KINDS if re.fullmatch(KINDS[kind], name)), None)


def export_results(
    outputs: Path, archive: Path, limit: int | None = LIMIT, sent: Path | None = None
) -> Exported:
    """Write results that no archive had before, as many as there is room for.

    Args:
        outputs: the folder of runs, targets and studies.
        archive: the file that is written, in whole or not at all.
        limit: the bytes that it may have; ``None`` for any number.
        sent: the file that remembers what earlier archives had; what is left out of this one is
            not in it, and so goes to the next.
    """
    before = _read_sent(sent)
    packed: dict[str, bytes] = {}
    digests: dict[str, str] = {}
    left_out: list[str] = []
    size = 4096
    for group in _groups(outputs):
        read = {name: (outputs / name).read_bytes() for name in group}
        found = {name: hashlib.sha256(content).hexdigest() for name, content in read.items()}
        if all(before.get(name) == digest for name, digest in found.items()):
            continue
        needed = sum(map(_packed_size, read, read.values()))
        if limit is not None and size + needed > limit:
            left_out += group
            continue
        size += needed
        packed |= read
        digests |= found
    _write_archive(archive, packed, digests, left_out)
    if sent is not None:
        files.write_text(sent, json.dumps(before | digests, indent=1))
    return Exported(tuple(packed), tuple(left_out))


def _read_sent(sent: Path | None) -> dict[str, str]:
    if sent is None:
        return {}
    try:
        return json.loads(sent.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:  # everything is packed again
        files.quarantine(sent, error)
        return {}


def _groups(outputs: Path) -> Iterator[list[str]]:
    """The results below a folder, those together that are of use together, targets first."""
    found: dict[str, dict[Path, list[str]]] = {kind: {} for kind in KINDS}
    for path in sorted(outputs.glob("**/*")):
        name = path.relative_to(outputs)
        kind = kind_of(name.as_posix())
        if kind is None or not path.is_file() or path.is_symlink():
            continue
        own = outputs / name.parts[0] / name.parts[1]
        done = (own / "target.json").exists() or (own / "result.json").exists()
        if kind in (STATE if done else FINISHED):
            continue
        # A target's files are of use together, a task is of use alone.
        key = path.parent if kind in (*FINISHED, "benchmarks") else path
        found[kind].setdefault(key, []).append(name.as_posix())
    for groups in found.values():
        yield from groups.values()


def _packed_size(name: str, content: bytes) -> int:
    """The bytes that a file takes in an archive, its entries in the lists included."""
    return len(zlib.compress(_stored(name, content))) + 3 * len(name) + 300


def _stored(name: str, content: bytes) -> bytes:
    """A file as it is put into the archive: weights as planes of bytes."""
    return _transpose(content, 4) if name.endswith(".safetensors") else content


def _restored(name: str, stored: bytes) -> bytes:
    return _transpose(stored, len(stored) // 4) if name.endswith(".safetensors") else stored


def _transpose(content: bytes, columns: int) -> bytes:
    """Bytes read by rows of ``columns`` and written by columns; up to three at the end stay.

    >>> _transpose(b"abcdABCDx", 4), _transpose(_transpose(b"abcdABCDx", 4), 2)
    (b'aAbBcCdDx', b'abcdABCDx')
    """
    whole = len(content) // 4 * 4
    if not whole:
        return content
    planes = np.frombuffer(content[:whole], np.uint8).reshape(-1, columns).T
    return planes.tobytes() + content[whole:]


def _write_archive(
    archive: Path, packed: Mapping[str, bytes], digests: Mapping[str, str], left_out: list[str]
) -> None:
    about = {"commit": commit(), "files": digests, "left_out": left_out}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(MANIFEST, json.dumps(about, indent=1))
        for name, content in packed.items():
            file.writestr(name, _stored(name, content))
    files.write_bytes(archive, buffer.getvalue())


def import_results(archive: Path, outputs: Path, study: str) -> Imported:
    """Check an archive as a whole, then add what it holds to a folder of results.

    A file that is there already stays as it is, whether it is the same or not; so does a target of
    which one file is another. Only the state of an interrupted training is replaced, by one that is
    further on.

    Args:
        archive: what ``export_results`` wrote.
        outputs: the folder of runs, targets and studies.
        study: the study whose tasks it may hold.

    Raises:
        UserError: there is no such archive, or it holds something else than results, a link, a
            file that is not what its digest says or that cannot be read; or a pipe or a folder is
            where a file of it belongs. Nothing is written then.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = _unpack(archive, study, Path(folder))
        _require_files(names, outputs)
        kept = _kept_targets(names, Path(folder), outputs)
        states = {
            name: "kept" if name in kept else _add(Path(folder) / name, outputs / name)
            for name in names
        }
    return Imported(*(tuple(n for n in names if states[n] == s) for s in ("new", "same", "kept")))


def _require_files(names: Sequence[str], outputs: Path) -> None:
    """Raise ``UserError`` where something else than a file is in a result's place."""
    for name in names:
        try:
            files.require_regular(outputs / name)
        except FileNotFoundError:
            continue
        except files.Damaged as error:
            raise UserError(f"{error}; move it away; nothing is taken") from None


def _kept_targets(names: Sequence[str], arrived: Path, outputs: Path) -> set[str]:
    """Files of targets of which another one is there: weights go with what is said of them."""
    others = {
        Path(name).parent
        for name in names
        if kind_of(name) == "targets"
        and (outputs / name).exists()
        and (outputs / name).read_bytes() != (arrived / name).read_bytes()
    }
    return {name for name in names if kind_of(name) == "targets" and Path(name).parent in others}


def _unpack(archive: Path, study: str, folder: Path) -> list[str]:
    """Unpack into an empty folder, every file checked; their names."""
    try:
        files.require_regular(archive)
        with zipfile.ZipFile(archive) as file:
            entries = file.infolist()
            if sum(entry.file_size for entry in entries) > LARGEST:
                raise UserError(f"{archive}: over {LARGEST >> 30} GiB unpacked; nothing is taken")
            names = [entry.filename for entry in entries]
            if len(names) != len(set(names)) or names[:1] != [MANIFEST]:
                raise UserError(f"{archive} is no archive of results; give one of make gpu-slice")
            digests = _digests(file.read(MANIFEST), archive)
            for entry in entries[1:]:
                _check_entry(entry, study, archive)
                content = _restored(entry.filename, file.read(entry))
                if hashlib.sha256(content).hexdigest() != digests.get(entry.filename):
                    raise _refusal(archive, entry.filename, "is not what its digest says")
                _write(folder / entry.filename, content, archive)
                _check_content(folder / entry.filename, archive, entry.filename)
    except files.Damaged as error:
        raise UserError(f"{error}; give an archive of results") from None
    except OSError as error:
        raise UserError(f"{archive} cannot be read ({error.strerror or error})") from None
    except (RunError, UserError):
        raise
    except Exception as error:  # a damaged zip file raises what its decoders happen to raise
        reason = first_line(error)
        raise UserError(f"{archive} is damaged ({reason}); copy it again") from None
    if lacking := sorted(digests.keys() - set(names)):
        raise UserError(f"{archive}: {shorten(lacking)} is missing in it; copy it again")
    return names[1:]


def _write(path: Path, content: bytes, archive: Path) -> None:
    try:
        files.write_bytes(path, content)
    except OSError as error:
        place, reason = tempfile.gettempdir(), error.strerror or error
        raise RunError(
            f"{archive} cannot be unpacked in {place} ({reason}); TMPDIR names another folder"
        ) from None


def _refusal(archive: Path, name: str, reason: str) -> UserError:
    return UserError(f"{archive}: {name[:200]!r} {reason}; nothing is taken")


def _digests(text: bytes, archive: Path) -> dict[str, str]:
    try:
        found = json.loads(text)["files"]
        return {str(name): str(digest) for name, digest in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{archive}: its {MANIFEST} is damaged; copy it again") from None


def _check_entry(entry: zipfile.ZipInfo, study: str, archive: Path) -> None:
    """Raise ``UserError`` for a name that is no result's, and for what is no regular file."""
    if (entry.external_attr >> 16) & 0o170000 not in (0, 0o100000):
        raise _refusal(archive, entry.filename, "is a link or no regular file")
    if (kind := kind_of(entry.filename)) is None:
        raise _refusal(archive, entry.filename, f"is none of: {', '.join(KINDS)}")
    other = entry.filename.split("/")[1]
    if kind == "tasks" and other != study:
        raise _refusal(archive, entry.filename, f"belongs to bnrecon study {other}")


def _check_content(path: Path, archive: Path, name: str) -> None:
    """Raise ``UserError`` for a file that is not what its name says."""
    try:
        if path.suffix == ".safetensors":
            files.read_tensors(path)
        elif path.name == "bench.json":  # without a digest in it
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".json":
            files.read_json(path)
        elif "\0" in path.read_text(encoding="utf-8"):
            raise ValueError
    except ValueError:
        raise _refusal(archive, name, f"is no {path.suffix[1:]} file, or a damaged one") from None


def _add(arrived: Path, path: Path) -> str:
    """Put a file where it belongs, if nothing is there; what became of it."""
    content = arrived.read_bytes()
    if not path.exists() or _is_further(arrived, path):
        files.write_bytes(path, content)
        return "new"
    return "same" if path.read_bytes() == content else "kept"


def _is_further(arrived: Path, path: Path) -> bool:
    """Whether the state of an interrupted training has more steps than the one that is there.

    A state with other tensors is not of the same training.
    """
    if path.name != "checkpoint.safetensors":
        return False
    (tensors, about), own = (
        files.read_tensors(arrived),
        files.read_if_valid(path, files.read_tensors),
    )
    if own is None:
        return True
    shapes = [{name: x.shape for name, x in state.items()} for state in (tensors, own[0])]
    return shapes[0] == shapes[1] and _step(about) > _step(own[1])


def _step(about: Mapping[str, Any]) -> int:
    step = about.get("step")
    return step if isinstance(step, int) else -1
