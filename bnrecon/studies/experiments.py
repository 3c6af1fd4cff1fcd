"""Experiments of a study that are no runs of the main job: computed at once, kept as a table with its picture."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from bnrecon import store, tables
from bnrecon.errors import UserError
from bnrecon.studies import deeper_sources, nonlinear_layer, normalization_training, source_cost, width_threshold

__all__ = ["EXPERIMENTS", "Experiment", "obtain", "write"]

DRAWS = {"smoke": 3, "laptop": 50, "paper": 200}


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


EXPERIMENTS = {
    "thresholds": Experiment(
        "Lemma 2.1, Theorems 2.2 and 2.3",
        "Width at which targets become reachable",
        "Share of draws rebuilt to a relative error of 1e-6 over the whole composed kernel (float64), second scales free below n. "
        "Pathological targets are made from the features, for the width they are tried at (at n and above: for n - 1): Theorem 2.2 "
        "has to exclude them, Theorem 2.3 does not.",
        lambda scale, words: width_threshold.success_rates(draws=DRAWS[scale]),
        width_threshold.thresholds,
        width_threshold.draw,
    ),
    "deeper": Experiment(
        "Theorem 2.5",
        "Deeper sources: draws rebuilt against the total width",
        "Random targets, He-normal weights, a first kernel that covers the target's and 1x1 kernels behind it; Levenberg-Marquardt from "
        "random starts, float64, rebuilt means a relative error of 1e-8. Failures at L = 2, n + 1, are the search's: there Theorem 2.2 "
        "gives the solution. Reachable dimensions: rank of the Jacobian at random scales; below n almost no target is reached. The settings "
        "with c_1 < c0 k² and with c_(L-1) = c0 < c2 fulfil all that the theorem asks for (total width n + L, c_l >= c0 in every layer) and are "
        "counterexamples to it: a target's rows would have to lie in the first layer's row space, its columns in the last one's.",
        lambda scale, words: deeper_sources.success_rates(draws={"smoke": 2, "laptop": 20, "paper": 100}[scale]),
        deeper_sources.summary,
        deeper_sources.draw,
    ),
    "nonlinear": Experiment(
        "Theorem 2.4",
        "A nonlinear first layer: error against the theorem's bound, on a trained target's activations",
        "Each layer of the trained target rebuilt alone (he_normal, oversampling 1.5); ranges from 1,024 training images, times 2; errors over "
        "test images. A float32 sigmoid cancels around 1/2, where a tanh around 0 does not: there a smaller epsilon, a smaller scale, makes it worse.",
        nonlinear_layer.errors,
        nonlinear_layer.summary,
        nonlinear_layer.draw,
    ),
    "cost": Experiment(
        "Sect. 3.2",
        "What the source costs beside its target (VGG18 of width 64 on CIFAR-10)",
        "Trainable: inner scales, second scales and second shifts of all layers (inner shifts are not needed behind a linear first layer); "
        "the paper's 592,657 counts the 17 convolutions at minimum width. Frozen weights come back from a seed: a saved source holds the "
        "normalization alone. Operations: multiply-adds of one image. Map: the largest intermediate map of one image, float32, which the "
        "source works through in chunks.",
        lambda scale, words: source_cost.table(),
        lambda frame: frame,
    ),
    "scratch": Experiment(
        "Sect. 3.2",
        "Training normalizations alone from scratch",
        "The source architecture of the target in the first line, frozen he_normal features, n + excess of them a layer, trained by its normalizations "
        "alone through the collapsed pair; the last layer is a frozen pair too. Off: |γ| < 0.01 (Frankle et al. 2021 report a third); never "
        "active: not positive at any place of 1,000 test images. ± is the 95% Student-t interval over "
        "seeds of features, data order and crops. At laptop scale 10 epochs, 3 of them warm-up (the target: 2), in the place of the paper's.",
        None,
        normalization_training.summary,
        resumable=normalization_training.table,
    ),
}


def obtain(name: str, scale: str, folder: Path, run: bool, words: Sequence[str] = ()) -> pd.DataFrame | None:
    """An experiment's table: from its file, computed if ``run`` and there is none, or ``None``."""
    path = folder / f"{name}-{scale}.csv"
    if EXPERIMENTS[name].resumable:
        return _as_far_as_it_is(name, scale, path, run, words)
    if path.exists():
        return pd.read_csv(path, keep_default_na=False)
    if not run:
        return None
    frame = EXPERIMENTS[name].compute(scale, words)
    store.write_text(path, frame.to_csv(index=False))
    return frame


def _as_far_as_it_is(name: str, scale: str, path: Path, run: bool, words: Sequence[str]) -> pd.DataFrame | None:
    try:
        frame = EXPERIMENTS[name].resumable(scale, words, run)
    except UserError:
        if run:
            raise
        return pd.read_csv(path, keep_default_na=True) if path.exists() else None  # no data at hand to ask for
    if "accuracy" not in frame:
        return None
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
    for kind in ("png", "svg") if experiment.draw else ():
        picture = io.BytesIO()
        experiment.draw(frame, picture, kind)
        store.write_bytes(folder / f"{name}-{scale}.{kind}", picture.getvalue())
    return text
