"""Experiments of a study that are no runs of the main job: computed at once, kept as a table with its picture."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bnrecon import store, tables
from bnrecon.errors import UserError
from bnrecon.hardware import describe, resolve_device
from bnrecon.run import commit

__all__ = ["Experiment", "obtain", "write"]


@dataclass(frozen=True)
class Experiment:
    """``compute(scale, words)`` gives the whole table, ``summary`` what is printed of it, ``draw(frame, file, kind)`` the picture.

    ``words`` are options of the run whose trained target an experiment needs, as ``data.root=FOLDER``. ``resumable(scale, words,
    run)``, in the place of ``compute``, gives what is done so far of an experiment whose parts are kept by themselves.
    """

    where: str
    title: str
    caption: str
    compute: Callable[[str, Sequence[str]], pd.DataFrame] | None
    summary: Callable[[pd.DataFrame], pd.DataFrame]
    draw: Callable[[pd.DataFrame, io.BytesIO, str], None] | None = None
    resumable: Callable[[str, Sequence[str], bool], pd.DataFrame] | None = None


def obtain(
    experiment: Experiment, name: str, scale: str, folder: Path, run: bool, words: Sequence[str] = ()
) -> pd.DataFrame | None:
    """An experiment's table: from its file, computed if ``run`` and there is none, or ``None``.

    The file says in its last columns at which commit, on what and in how many seconds it was computed.
    """
    path = folder / f"{name}-{scale}.csv"
    if experiment.resumable:
        return _as_far_as_it_is(experiment, scale, path, run, words)
    if path.exists():
        return _read(path)
    if not run:
        return None
    started = time.monotonic()
    frame = experiment.compute(scale, words)
    spent = round(time.monotonic() - started, 1)
    device = next((word.removeprefix("device=") for word in words if word.startswith("device=")), "auto")
    frame = frame.assign(commit=commit() or "installed", machine=describe(resolve_device(device)), seconds_in_all=spent)
    store.write_text(path, frame.to_csv(index=False))
    return frame


def _read(path: Path) -> pd.DataFrame:
    """A table as it was written: what is empty is missing in columns of numbers, and nothing in columns of words."""
    frame = pd.read_csv(path)
    return frame.assign(**{name: frame[name].fillna("") for name in frame.columns if frame[name].dtype.kind not in "fib"})


def _as_far_as_it_is(experiment: Experiment, scale: str, path: Path, run: bool, words: Sequence[str]) -> pd.DataFrame | None:
    try:
        frame = experiment.resumable(scale, words, run)
    except UserError:
        if run:
            raise
        return _read(path) if path.exists() else None  # no data at hand to ask for
    if "accuracy" not in frame:
        return None
    store.write_text(path, frame.to_csv(index=False))
    return frame


def write(experiment: Experiment, name: str, study: str, scale: str, folder: Path, frame: pd.DataFrame | None) -> str:
    """Write an experiment's summary and picture; return what to print."""
    command = f"bnrecon study {study} {name} scale={scale}"
    heading = f"{experiment.where}: {experiment.title}; scale {scale}"
    if frame is None:
        return f"{heading}\n\nnot run: {command}"
    summary = experiment.summary(frame.drop(columns=["commit", "machine", "seconds_in_all"], errors="ignore"))
    origin = ""
    if "commit" in frame:
        origin = f"Commit {frame['commit'].iloc[0]}; {frame['machine'].iloc[0]}; {frame['seconds_in_all'].iloc[0]:.0f} s. "
    text = f"{heading}\n\n{tables.markdown(summary)}\n\n{experiment.caption}\n{origin}Command: `{command}`."
    store.write_text(folder / f"{name}-{scale}.md", text + "\n")
    store.write_text(folder / f"{name}-{scale}.tex", summary.to_latex(index=False, escape=True))
    for kind in ("png", "svg") if experiment.draw else ():
        picture = io.BytesIO()
        experiment.draw(frame, picture, kind)
        store.write_bytes(folder / f"{name}-{scale}.{kind}", picture.getvalue())
    return text
