"""Experiments of a study that need no trained target: computed at once, kept as a table with its picture."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bnrecon import store, tables
from bnrecon.studies import width_threshold

__all__ = ["EXPERIMENTS", "Experiment", "obtain", "write"]

DRAWS = {"smoke": 3, "laptop": 50, "paper": 200}


@dataclass(frozen=True)
class Experiment:
    """``compute(scale)`` gives the whole table, ``summary`` what is printed of it, ``draw(frame, file, kind)`` the picture."""

    where: str
    title: str
    caption: str
    compute: Callable[[str], pd.DataFrame]
    summary: Callable[[pd.DataFrame], pd.DataFrame]
    draw: Callable[[pd.DataFrame, io.BytesIO, str], None]


EXPERIMENTS = {
    "thresholds": Experiment(
        "Lemma 2.1, Theorems 2.2 and 2.3",
        "Width at which targets become reachable",
        "Share of draws rebuilt to a relative error of 1e-6 over the whole composed kernel (float64), second scales free below n. "
        "Pathological targets are made from the features, for the width they are tried at (at n and above: for n - 1): Theorem 2.2 "
        "has to exclude them, Theorem 2.3 does not.",
        lambda scale: width_threshold.success_rates(draws=DRAWS[scale]),
        width_threshold.thresholds,
        width_threshold.draw,
    )
}


def obtain(name: str, scale: str, folder: Path, run: bool) -> pd.DataFrame | None:
    """An experiment's table: from its file, computed if ``run`` and there is none, or ``None``."""
    path = folder / f"{name}-{scale}.csv"
    if path.exists():
        return pd.read_csv(path)
    if not run:
        return None
    frame = EXPERIMENTS[name].compute(scale)
    store.write_text(path, frame.to_csv(index=False))
    return frame


def write(name: str, study: str, scale: str, folder: Path, frame: pd.DataFrame | None) -> str:
    """Write an experiment's summary and picture; return what to print."""
    experiment, command = EXPERIMENTS[name], f"bnrecon study {study} {name} scale={scale}"
    heading = f"{experiment.where}: {experiment.title}; scale {scale}"
    if frame is None:
        return f"{heading}\n\nnot run: {command}"
    summary = experiment.summary(frame)
    text = f"{heading}\n\n{tables.markdown(summary)}\n\n{experiment.caption}\nCommand: `{command}`."
    store.write_text(folder / f"{name}-{scale}.md", text + "\n")
    store.write_text(folder / f"{name}-{scale}.tex", summary.to_latex(index=False, escape=True))
    for kind in ("png", "svg"):
        picture = io.BytesIO()
        experiment.draw(frame, picture, kind)
        store.write_bytes(folder / f"{name}-{scale}.{kind}", picture.getvalue())
    return text
