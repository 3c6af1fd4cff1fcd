"""Experiments of a study that are no runs of the main job: computed piece by piece, kept as a table with its picture."""

from __future__ import annotations

import io
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from tqdm import tqdm

from bnrecon import store, tables
from bnrecon.errors import Interrupted, RunError, UserError
from bnrecon.hardware import describe, resolve_device
from bnrecon.run import commit

__all__ = ["Experiment", "Pieces", "compute_missing", "read", "write"]

Pieces = Mapping[str, Callable[[], pd.DataFrame]]
ORIGIN = ("piece", "commit", "machine", "seconds_in_all")


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


def compute_missing(experiment: Experiment, name: str, scale: str, path: Path, words: Sequence[str]) -> None:
    """Compute the pieces that the table at ``path`` lacks; each is written at once, with commit, machine and seconds.

    Killed at any point and called again, it goes on with the piece it was at. Several processes share the pieces. Where a piece fails
    the others go on.

    Raises ``RunError`` at the end if any failed, ``UserError`` if all that did were mistakes in what was asked.
    """
    missing = {piece: make for piece, make in experiment.pieces(scale, words).items() if piece not in _written(path)}
    device = next((word.removeprefix("device=") for word in words if word.startswith("device=")), "auto")
    origin = {"commit": commit() or "installed", "machine": describe(resolve_device(device))}  # of the code that was loaded
    locks = path.parent / ".locks"
    failed: dict[str, str] = {}
    mistakes: list[str] = []
    with tqdm(total=len(missing), desc=name, disable=None) as bar:
        for piece in store.shared(missing, locks / path.stem):
            if piece not in _written(path):
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
                with store.claimed(locks / f"{path.name}.writing", lambda: f"waiting to write {path}"):
                    _append(path, frame)
                if bar.disable:
                    print(f"{name}: {piece}, {spent} s", file=sys.stderr, flush=True)
            bar.update()
    if failed:
        raise RunError("; ".join([*(f"{piece}: {said}" for piece, said in failed.items()), *dict.fromkeys(mistakes)]))
    if mistakes:
        raise UserError("; ".join(dict.fromkeys(mistakes)))


def _append(path: Path, frame: pd.DataFrame) -> None:
    if path.exists():
        found = pd.read_csv(path, dtype=str, keep_default_na=False)  # a number parsed and written again may lose its last digit
        frame = pd.concat([found, frame], ignore_index=True)
    store.write_text(path, frame.to_csv(index=False))


def _written(path: Path) -> set[str]:
    found = read(path)
    return set() if found is None else set(found["piece"])


def read(path: Path) -> pd.DataFrame | None:
    """A table as it was written: what is empty is missing in columns of numbers, and nothing in columns of words.

    Raises ``UserError`` for a file that is damaged.
    """
    if not path.exists():
        return None
    try:
        text = path.read_text()
        frame = pd.read_csv(io.StringIO(text))
        whole = text.endswith("\n") and not frame[list(ORIGIN)].isna().any(axis=None) and len(frame)
    except (ValueError, KeyError):  # pandas' own are ValueErrors
        whole = False
    if not whole:
        raise UserError(f"{path} is damaged; remove it, and what it held is computed again")
    return frame.assign(**{name: frame[name].fillna("") for name in frame.columns if frame[name].dtype.kind not in "fib"})


def write(experiment: Experiment, heading: str, command: str, stem: Path, scale: str, words: Sequence[str]) -> str:
    """Write the summary and picture of what is computed so far, ``stem`` with endings; return what to print.

    ``words`` are the options of its runs. Raises ``UserError`` for a table that is damaged or of another version.
    """
    pieces = experiment.pieces(scale, words)
    frame = read(stem.parent / f"{stem.name}.csv")
    heading = f"{heading}{experiment.where}: {experiment.title}"
    if frame is None:
        given = [word for word in words if word not in command.split()]
        return f"{heading}\n\nnot run: {' '.join((command, *map(shlex.quote, given)))}"
    order = {piece: number for number, piece in enumerate(pieces)}
    frame = frame.sort_values("piece", key=lambda column: column.map(order), kind="stable")
    lacking = [piece for piece in pieces if piece not in set(frame["piece"])]
    try:
        summary = experiment.summary(frame.drop(columns=list(ORIGIN)))
    except KeyError as error:
        raise UserError(
            f"{stem.name}.csv has no {error}: another version wrote it; remove it, and what it held is computed again"
        ) from None
    by_piece = frame.groupby("piece", sort=False)[list(ORIGIN[1:])].first()
    origin = (
        f"Commits {', '.join(sorted(set(by_piece['commit'])))}; {', '.join(sorted(set(by_piece['machine'])))}; "
        f"{by_piece['seconds_in_all'].sum():.0f} s, without what was interrupted or had been trained before. "
    )
    short = f"{len(lacking)} of {len(pieces)} pieces are not run yet: {command}\n" if lacking else ""
    options = " ".join(experiment.options(scale)) if experiment.options else ""
    trained = f"Trained with {options}. " if options else ""
    text = f"{heading}\n\n{tables.markdown(summary)}\n\n{experiment.caption}\n{short}{trained}{origin}Command: `{command}`."
    store.write_text(stem.parent / f"{stem.name}.md", text + "\n")
    store.write_text(stem.parent / f"{stem.name}.tex", tables.latex(summary))
    for kind in ("png", "svg") if experiment.draw else ():
        picture = io.BytesIO()
        experiment.draw(frame, picture, kind)
        store.write_bytes(stem.parent / f"{stem.name}.{kind}", picture.getvalue())
    return text
