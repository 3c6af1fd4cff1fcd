"""Taking in archives of results that another machine computed, and nothing else.

An archive is a zip file of what a study stores below its outputs folder: trained targets, runs,
tasks, benchmarks, and the state of what was interrupted. It holds JSON, safetensors, CSV and text.
``archive.json`` in it has every file's SHA-256. A safetensors file is stored as four planes, its
bytes number 0, 4, 8, ..., then 1, 5, 9, ... and so on: float32 weights so take 84% of their size,
as they are 92%. Every file of an archive is checked, by name, digest and content, before anything
of it is written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError, first_line, shorten

MANIFEST = "archive.json"
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
            names = [name for name in self.new if kind_of(name) == kind]
            folders = sorted({Path(name).parent.name for name in names})
            if names and kind in FINISHED:
                lines.append(f"{kind:<22}{len(folders)}: {shorten(folders, 8)}")
            elif names:
                lines.append(f"{kind:<22}{len(names)}")
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


def transpose(content: bytes, columns: int) -> bytes:
    """Bytes read by rows of ``columns`` and written by columns; up to three at the end stay.

    >>> transpose(b"abcdABCDx", 4), transpose(transpose(b"abcdABCDx", 4), 2)
    (b'aAbBcCdDx', b'abcdABCDx')
    """
    whole = len(content) // 4 * 4
    if not whole:
        return content
    planes = np.frombuffer(content[:whole], np.uint8).reshape(-1, columns).T
    return planes.tobytes() + content[whole:]


def import_results(archive: Path, outputs: Path, study: str) -> Imported:
    """Check an archive as a whole, then add what it holds to a folder of results.

    A file that is there already stays as it is, whether it is the same or not; so does a target of
    which one file is another. Only the state of an interrupted training is replaced, by one that is
    further on.

    Args:
        archive: what ``scripts/gpu/pack_results.py`` wrote.
        outputs: the folder of runs, targets and studies.
        study: the study whose tasks it may hold.

    Raises:
        UserError: there is no such archive, or it holds something else than results, or a file that
            is not what its digest says; or a pipe or a folder is where a file of it belongs.
            Nothing is written then.
    """
    try:
        contents = _unpack(archive, study)
        for name in contents:
            with contextlib.suppress(FileNotFoundError):
                files.require_regular(outputs / name)
    except files.Damaged as error:
        raise UserError(f"{error}; nothing is taken") from None
    # Weights go with what is said of them: of a target of which another one is here, both stay.
    others = {
        Path(name).parent
        for name, content in contents.items()
        if kind_of(name) == "targets"
        and (outputs / name).exists()
        and (outputs / name).read_bytes() != content
    }
    states = {
        name: "kept"
        if Path(name).parent in others and kind_of(name) == "targets"
        else _add(content, outputs / name)
        for name, content in contents.items()
    }
    return Imported(*(tuple(n for n in states if states[n] == s) for s in ("new", "same", "kept")))


def _unpack(archive: Path, study: str) -> dict[str, bytes]:
    """The files of an archive by name, every one checked."""
    try:
        files.require_regular(archive)
        with zipfile.ZipFile(archive) as file:
            if sum(entry.file_size for entry in file.infolist()) > LARGEST:
                raise UserError(f"{archive}: over {LARGEST >> 30} GiB unpacked; nothing is taken")
            names = file.namelist()
            if len(names) != len(set(names)) or names[:1] != [MANIFEST]:
                raise UserError(f"{archive} is no archive of results; give one of make gpu-slice")
            digests = dict(json.loads(file.read(MANIFEST))["files"])
            contents = {name: file.read(name) for name in names[1:]}
    except (UserError, files.Damaged):
        raise
    except OSError as error:
        raise UserError(f"{archive} cannot be read ({error.strerror or error})") from None
    except Exception as error:  # a damaged zip file raises what its decoders happen to raise
        reason = first_line(error)
        raise UserError(f"{archive} is damaged ({reason}); copy it again") from None
    for name, content in contents.items():
        if name.endswith(".safetensors"):
            contents[name] = transpose(content, len(content) // 4)
        if reason := _objection(name, contents[name], study, digests.pop(name, None)):
            raise UserError(f"{archive}: {name[:200]!r} {reason}; nothing is taken")
    if digests:
        raise UserError(f"{archive}: {shorten(sorted(digests))} is missing in it; copy it again")
    return contents


def _objection(name: str, content: bytes, study: str, digest: object) -> str:
    """Why a file is not taken; empty where it is."""
    if (kind := kind_of(name)) is None:
        return f"is none of: {', '.join(KINDS)}"
    if kind == "tasks" and (other := name.split("/")[1]) != study:
        return f"belongs to bnrecon study {other}"
    if hashlib.sha256(content).hexdigest() != digest:
        return "is not what its digest says"
    # It may have been damaged before it was packed, and would stand in the way of a good one.
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / Path(name).name
            path.write_bytes(content)
            if path.suffix == ".safetensors":
                files.read_tensors(path)
            elif path.name == "bench.json":  # without a digest in it
                json.loads(content)
            elif path.suffix == ".json":
                files.read_json(path)
            elif "\0" in content.decode():
                raise ValueError
    except ValueError:
        return f"is no {path.suffix[1:]} file, or a damaged one"
    return ""


def _add(content: bytes, path: Path) -> str:
    """Put a file where it belongs, if nothing is there; what became of it."""
    if not path.exists() or (path.name == "checkpoint.safetensors" and _is_further(content, path)):
        files.write_bytes(path, content)
        return "new"
    return "same" if path.read_bytes() == content else "kept"


def _is_further(content: bytes, path: Path) -> bool:
    """Whether the state of an interrupted training has more steps than the one that is there.

    A state with other tensors is not of the same training.
    """
    if files.read_if_valid(path, files.read_tensors) is None:
        return True
    (shapes, step), (other, reached) = map(_shapes_and_step, (content, path.read_bytes()))
    return shapes == other and step > reached


def _shapes_and_step(content: bytes) -> tuple[list[tuple[str, list[int]]], int]:
    """The tensors of a safetensors file, and how far the training is, by its header."""
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    step = json.loads(header.pop("__metadata__")["about"]).get("step")
    shapes = sorted((name, entry["shape"]) for name, entry in header.items())
    return shapes, step if isinstance(step, int) else -1
