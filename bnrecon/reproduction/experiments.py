"""Experiments of a study that are no runs of the main job: computed piece by piece, kept as a table with its picture."""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from bnrecon.reporting import tables
from bnrecon.runtime import files, locks
from bnrecon.runtime.errors import Interrupted, RunError, UserError
from bnrecon.runtime.hardware import describe, resolve_device
from bnrecon.runtime.provenance import commit

__all__ = ["Experiment", "Pieces", "Stored", "compute_missing", "read", "rows", "signed", "write"]


Pieces = Mapping[str, Callable[[], pd.DataFrame]]


ORIGIN = ("piece", "commit", "machine", "seconds_in_all", "digest")


WORDS = ("piece", "commit", "machine", "digest")  # never numbers, whatever they look like


@dataclass(frozen=True)
class Experiment:
    """``pieces(scale, words)`` names the parts of the whole table and how each is computed; naming them costs nothing.

    ``words`` are options of the runs whose trained targets an experiment needs, as ``data.root=FOLDER``; ``options(scale)`` are
    those that it gives them itself, ``None`` where it has no such runs. ``summary`` makes what is printed of the table, ``draw(frame, file, kind)`` the picture.
    """

    where: str
    title: str
    caption: str
    pieces: Callable[[str, Sequence[str]], Pieces]
    summary: Callable[[pd.DataFrame], pd.DataFrame]
    draw: Callable[[pd.DataFrame, io.BytesIO, str], None] | None = None
    options: Callable[[str], Sequence[str]] | None = None


@dataclass(frozen=True)
class Stored:
    """A table's sound pieces, ``None`` where there is none, and what is wrong with the others, by piece."""

    frame: pd.DataFrame | None
    damaged: dict[str, str]

    @property
    def pieces(self) -> set[str]:
        """Names of the sound pieces."""
        return set() if self.frame is None else set(self.frame["piece"])


def compute_missing(
    experiment: Experiment,
    name: str,
    scale: str,
    path: Path,
    words: Sequence[str],
    shipped: Path | None = None,
) -> None:
    """Compute the pieces that the tables at ``path`` and ``shipped`` lack; each is written to ``path`` at once, with its origin.

    Killed at any point and called again, it goes on with the piece it was at. Several processes share the pieces. A damaged piece is
    named and computed again, the file that held it kept beside. Where a piece fails the others go on.

    Raises ``RunError`` at the end if any failed, ``UserError`` if all that did were mistakes in what was asked.
    """
    claims = path.parent / ".locks"
    with locks.claimed(claims / f"{path.name}.writing", lambda: f"waiting to read {path}"):
        _mend(path)
    known = read(path, shipped)
    missing = {
        piece: make
        for piece, make in experiment.pieces(scale, words).items()
        if piece not in known.pieces
    }
    device = next(
        (word.removeprefix("device=") for word in words if word.startswith("device=")), "auto"
    )
    origin = {
        "commit": commit() or "installed",
        "machine": describe(resolve_device(device)),
    }  # of the code that was loaded
    failed: dict[str, str] = {}
    mistakes: list[str] = []
    with tqdm(total=len(missing), desc=name, disable=None) as bar:
        for piece in locks.shared(missing, claims / path.stem):
            if piece not in read(path, shipped).pieces:
                bar.set_postfix_str(piece)
                started = time.monotonic()
                try:
                    frame = missing[piece]()
                except (Interrupted, KeyboardInterrupt):
                    raise
                except UserError as error:
                    mistakes.append(str(error))
                    continue
                except Exception as error:  # out of memory, a diverging training: whatever it is, the other pieces go on
                    if not isinstance(error, RunError):
                        traceback.print_exc()
                    failed[piece] = str(error)
                    continue
                spent = round(time.monotonic() - started, 1)
                frame = frame.assign(piece=piece, **origin, seconds_in_all=spent)
                with locks.claimed(
                    claims / f"{path.name}.writing", lambda: f"waiting to write {path}"
                ):
                    _append(path, frame)
                if bar.disable:
                    print(f"{name}: {piece}, {spent} s", file=sys.stderr, flush=True)
            bar.update()
    if failed:
        raise RunError(
            "; ".join(
                [*(f"{piece}: {said}" for piece, said in failed.items()), *dict.fromkeys(mistakes)]
            )
        )
    if mistakes:
        raise UserError("; ".join(dict.fromkeys(mistakes)))


def _mend(path: Path) -> pd.DataFrame | None:
    """Set a damaged file aside and leave its sound rows in its place; return them. The file's lock must be held."""
    rows, damaged = _sound_rows(path)
    if damaged:
        files.set_aside(path, "; ".join(damaged.values()))
        if rows is not None:
            files.write_text(path, rows.to_csv(index=False))
    return rows


def _append(path: Path, frame: pd.DataFrame) -> None:
    """Add a piece to the file; what is damaged in it is set aside first. The file's lock must be held."""
    rows = _mend(path)
    # A number parsed and written again may lose its last digit: what was written stays as it stands.
    added = signed(
        pd.read_csv(io.StringIO(frame.to_csv(index=False)), dtype=str, keep_default_na=False)
    )
    whole = added if rows is None else pd.concat([rows, added], ignore_index=True).fillna("")
    files.write_text(path, whole.to_csv(index=False))


def signed(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows as words, each with the digest of its piece: a digit changed, a line lost or doubled is known by it.

    >>> rows = pd.DataFrame({"n": ["1", "2"], "piece": ["a", "a"]})
    >>> signed(rows)["digest"].nunique(), signed(rows[:1])["digest"][0] == signed(rows)["digest"][0]
    (1, False)
    """
    digests = {piece: _digest(part) for piece, part in rows.groupby("piece", sort=False)}
    return rows.assign(digest=rows["piece"].map(digests))


def _digest(rows: pd.DataFrame) -> str:
    """Of the cells that are not empty: a column that another piece brings changes nothing."""
    lines = rows.drop(columns="digest", errors="ignore").to_dict("records")
    content = [{name: cell for name, cell in line.items() if cell != ""} for line in lines]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _sound_rows(path: Path) -> tuple[pd.DataFrame | None, dict[str, str]]:
    """The rows, as words, of the pieces that are as they were written, and what is wrong with the others."""
    try:
        files.require_regular(path)
        rows = pd.read_csv(
            io.StringIO(path.read_text(encoding="utf-8")), dtype=str, keep_default_na=False
        )
        if not {*ORIGIN} <= set(rows.columns) or rows.empty:
            raise ValueError
    except FileNotFoundError:
        return None, {}
    except (ValueError, OSError):  # pandas' own are ValueErrors
        return None, {"": f"{path} is damaged, or was written by another version of bnrecon"}
    digests = {piece: _digest(part) for piece, part in rows.groupby("piece", sort=False)}
    sound = rows["digest"] == rows["piece"].map(digests)
    wrong = dict.fromkeys(rows.loc[~sound, "piece"])
    damaged = {
        piece: f"{path} is damaged: the rows of {piece!r} are not those that were written"
        for piece in wrong
    }
    rows = rows[~rows["piece"].isin(damaged)]
    return (rows if len(rows) else None), damaged


def rows(path: Path) -> pd.DataFrame | None:
    """The rows of a table's sound pieces as the words they were written as, ``None`` where there is none."""
    return _sound_rows(path)[0]


def read(path: Path, shipped: Path | None = None) -> Stored:
    """The pieces of the table at ``path``, and those that ``shipped`` has besides, as numbers and words.

    What is empty is missing in columns of numbers, and nothing in columns of words.
    """
    rows, damaged = _sound_rows(path)
    if shipped is not None:
        more, also = _sound_rows(shipped)
        damaged |= also
        if more is not None and rows is not None:
            more = more[~more["piece"].isin(set(rows["piece"]))]
        rows = (
            more
            if rows is None
            else rows
            if more is None
            else pd.concat([more, rows], ignore_index=True).fillna("")
        )
    if rows is None:
        return Stored(None, damaged)
    frame = pd.read_csv(io.StringIO(rows.to_csv(index=False)), dtype=dict.fromkeys(WORDS, str))
    frame = frame.assign(
        **{
            name: frame[name].fillna("")
            for name in frame.columns
            if frame[name].dtype.kind not in "fib"
        }
    )
    return Stored(
        frame, {piece: why for piece, why in damaged.items() if piece not in set(frame["piece"])}
    )


def write(
    experiment: Experiment,
    heading: str,
    command: str,
    stem: Path,
    scale: str,
    words: Sequence[str],
    shipped: Path | None = None,
) -> tuple[str, list[str]]:
    """Write the summary and picture of what is computed so far, ``stem`` with endings; return what to print, and what is damaged.

    ``words`` are the options of its runs, ``shipped`` a table that is read besides. Raises ``UserError`` for one of another version.
    """
    pieces = experiment.pieces(scale, words)
    stored = read(stem.parent / f"{stem.name}.csv", shipped)
    frame, damaged = stored.frame, list(stored.damaged.values())
    heading = f"{heading}{experiment.where}: {experiment.title}"
    if frame is None:
        given = [word for word in words if word not in command.split()]
        return f"{heading}\n\nnot run: {' '.join((command, *map(shlex.quote, given)))}", damaged
    order = {piece: number for number, piece in enumerate(pieces)}
    frame = frame.sort_values("piece", key=lambda column: column.map(order), kind="stable")
    lacking = [piece for piece in pieces if piece not in set(frame["piece"])]
    damaged = damaged if lacking else []  # what it held is there from elsewhere
    try:
        summary = experiment.summary(frame.drop(columns=list(ORIGIN)))
    except KeyError as error:
        raise UserError(
            f"{stem.name}.csv has no {error}: another version wrote it; remove it, and what it held is computed again"
        ) from None
    by_piece = frame.groupby("piece", sort=False)[list(ORIGIN[1:-1])].first()
    origin = (
        f"Commits {', '.join(sorted(set(by_piece['commit'])))}; {', '.join(sorted(set(by_piece['machine'])))}; "
        f"{by_piece['seconds_in_all'].sum():.0f} s, without what was interrupted or had been trained before. "
    )
    short = (
        f"{len(lacking)} of {len(pieces)} pieces are not run yet: {command}\n" if lacking else ""
    )
    options = " ".join(experiment.options(scale)) if experiment.options else ""
    trained = f"Trained with {options}. " if options else ""
    text = f"{heading}\n\n{tables.markdown(summary)}\n\n{experiment.caption}\n{short}{trained}{origin}Command: `{command}`."
    files.write_text(stem.parent / f"{stem.name}.md", text + "\n")
    files.write_text(stem.parent / f"{stem.name}.tex", tables.latex(summary))
    for kind in ("png", "svg") if experiment.draw else ():
        picture = io.BytesIO()
        experiment.draw(frame, picture, kind)
        files.write_bytes(stem.parent / f"{stem.name}.{kind}", picture.getvalue())
    return text, damaged
