"""Tables 1 and 2 of Burkholz 2024: the runs of their cells, and the claims about them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import mean
from typing import Any

from bnrecon.reporting.statistics import mean_interval
from bnrecon.reporting.wording import count_of, span
from bnrecon.reproduction import intervals, page
from bnrecon.reproduction.parts import (
    Decision,
    Decisions,
    read_reported,
    read_text,
    refuse_compared,
)
from bnrecon.reproduction.request import option_name
from bnrecon.studies.burkholz2024.grid_figure import NAMES, draw
from bnrecon.studies.burkholz2024.run_tables.row import Cell, Row, results_of
from bnrecon.studies.burkholz2024.run_tables.row_numbers import changed_predictions
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable
from bnrecon.studies.burkholz2024.run_tables.verdicts import SMALLER, Reported, farthest_ends

TEXT = read_text(__file__)
PER = 10_000  # test images of one network
CELLS = 16  # of a printed table
MOST_CHANGED = 5  # of ``PER`` in a near perfect reconstruction: accuracy then moves by 0.05 points
# How the same targets are rebuilt; each differs from the last in one setting: solver, then width.
WAYS: Mapping[str, Sequence[str]] = {
    "paper": ("solver=lu_lbfgs", "features.width=minimum"),  # LU, then LBFGS (Sect. 3.1)
    "minimum": ("solver=auto", "features.width=minimum"),
    "exact": ("solver=auto",),  # 1.5 n features
}
COMPARED = {"features", "features.width", "solver", "target", "target.activation", "data"}
# The widths listed among the findings, by claim.
LISTED = {"enough": ("32", "64"), "variations": ("64",), "more": (), "near perfect": ("64",)}
PAPERS_EPOCHS = 205  # of scale=paper (Sect. 3)


@dataclass(frozen=True)
class Targets:
    """The targets of one width and training seed, and their cells of the table."""

    width: int
    activations: tuple[str, ...] = ()  # rows of the paper's table; empty for all
    features: tuple[str, ...] = ()  # its columns; empty for all
    seed: int = 0  # of the training
    overrides: tuple[str, ...] = ()  # of the runs
    scale: str = ""  # of the training; empty for the table's
    ways: tuple[str, ...] = tuple(WAYS)  # how they are rebuilt

    def labels(self, activation: str) -> dict[str, str]:
        """The labels that distinguish a target.

        >>> Targets(32, seed=1).labels("relu")
        {'target width': '32', 'target': 'relu, training seed 1'}
        """
        seed = f", training seed {self.seed}" if self.seed else ""
        epochs = f", {PAPERS_EPOCHS} epochs" if self.scale == "paper" else ""
        return {"target width": str(self.width), "target": f"{activation}{seed}{epochs}"}

    def options(self, scale: str, way: str) -> tuple[str, ...]:
        """The overrides of a run."""
        # For the exact runs of width 32, "auto" already takes the collapsed form. They were the
        # first, and setting the option would change their names.
        collapsed = scale != "smoke" and (scale, way, self.width) != ("laptop", "exact", 32)
        # The real source sees more images where its float32 rounding may change classes.
        images = {"laptop": 0 if way == "exact" else 256, "paper": 1024}.get(scale)
        return (
            f"scale={self.scale or scale}",
            f"target.width={self.width}",
            *((f"train.seed={self.seed}",) if self.seed else ()),
            *(("evaluate=collapsed",) if collapsed else ()),
            *((f"source_images={images}",) if images else ()),
            *self.overrides,
        )


def of_205_epochs(
    way: str, activations: tuple[str, ...] = (), features: tuple[str, ...] = ("he_normal",)
) -> Targets:
    """The paper's targets, from one source seed."""
    return Targets(64, activations, features, 0, ("seeds=[0]",), "paper", (way,))


# In the order of computation. On two cores, a single target of width 64 takes 80 minutes or more at
# minimum width, and 3 with 1.5 n features. The paper's targets have its three source seeds with 1.5
# n features, and one at minimum width, by bnrecon, where the eight targets of both tables share an
# LU (scripts/solve_together.py).
OTHERS = ("he_uniform", "orthogonal", "sparse_he_normal")
LAPTOP: Mapping[str, Sequence[Targets]] = {
    "cifar10": (
        Targets(16),
        Targets(32, ("relu",)),
        Targets(32, ("relu",), ("he_normal",), seed=1),
        Targets(32, ("relu",), ("he_normal",), seed=2),
        Targets(32, ("leaky_relu", "tanh", "sigmoid")),
        Targets(64, ("relu",), ("he_normal",), overrides=("seeds=[0]",)),
        of_205_epochs("paper", ("relu",)),
        of_205_epochs("minimum", features=OTHERS),
        of_205_epochs("minimum"),
        of_205_epochs("paper", ("leaky_relu", "sigmoid"), ("he_uniform",)),
        Targets(64, scale="paper", ways=("exact",)),
    ),
    "cifar100": (
        Targets(32),
        of_205_epochs("minimum", features=OTHERS),
        of_205_epochs("minimum"),
        of_205_epochs("paper", ("relu", "tanh"), ("he_uniform",)),
        Targets(64, scale="paper", ways=("exact",)),
    ),
}
WIDTH = 64  # of the paper's targets
SMOKE = (Targets(4, overrides=("seeds=[0,1]",)),)
PAPER = (Targets(WIDTH),)


def rows_of(
    data: str, reported: Mapping[str, Any], impossible: Sequence[str] = ()
) -> Callable[[str, Sequence[str]], list[Row]]:
    """The rows of Table 1 or 2: each cell, rebuilt in each way from the same target.

    Args:
        data: the images.
        reported: the table's ``target`` and ``rebuilt`` accuracies, as printed.
        impossible: the activations whose printed accuracies cannot be right.

    Returns:
        A function of the scale and the user's options, for ``RunTable``. ``target.width`` chooses
        among the widths of the scale; any other width replaces them.
    """

    def rows(scale: str, options: Sequence[str]) -> list[Row]:
        refuse_compared(options, COMPARED)
        return [
            Row(
                targets.labels(activation)
                | {"features": name, "solver": way, "rebuilt by": NAMES[way]},
                (
                    "target=vgg18",
                    f"data={data}",
                    *((f"target.activation={activation}",) if activation != "relu" else ()),
                    f"features={name}",
                    *WAYS[way],
                    *targets.options(scale, way),
                    *options,
                ),
                Reported.printed(reported["target"][activation], printed, width=WIDTH),
                activation not in impossible,
            )
            for targets in _chosen(scale, data, options)
            for activation, row in reported["rebuilt"].items()
            if not targets.activations or activation in targets.activations
            for name, printed in row.items()
            if not targets.features or name in targets.features
            for way in targets.ways
        ]

    return rows


def _chosen(scale: str, data: str, options: Sequence[str]) -> Sequence[Targets]:
    """The targets of a scale that the user's options choose."""
    chosen = {"smoke": SMOKE, "laptop": LAPTOP[data], "paper": PAPER}[scale]
    values = {option_name(option): option.partition("=")[2] for option in options}
    if "train.seed" in values:
        chosen = tuple(targets for targets in chosen if targets.seed == 0)
    if "train.epochs" in values:  # would make targets of another scale the same as these
        chosen = tuple(targets for targets in chosen if not targets.scale)
    if (width := values.get("target.width", "")).isdecimal():
        of_width = tuple(targets for targets in chosen if targets.width == int(width))
        return of_width or (Targets(int(width), overrides=chosen[0].overrides),)
    return chosen


def table(number: int, images: str, impossible: Sequence[str] = ()) -> RunTable:
    """Table 1 or 2, of CIFAR-10 or CIFAR-100; ``impossible`` as in ``rows_of``."""
    name, data = f"Table {number}", images.lower().replace("-", "")
    details = page.caption_and_details(TEXT.caption)[1]
    note = TEXT.sentence("impossible", targets=" and ".join(impossible))
    text = dataclasses.replace(
        TEXT,
        where=name,
        title=f"{TEXT.title} for {images}",
        caption=f"As Table 1.\n\n{details}\n\n{note}" if impossible else TEXT.caption,
    )
    rows = rows_of(data, read_reported(__package__)[f"table{number}"], impossible)
    return RunTable(text, rows, draw, partial(decide, name), as_grids=True)


def decide(table: str, cells: Sequence[Cell]) -> Decisions:
    """Decide the claims on a table whose cells are rebuilt in three ways, by target width.

    Claims without a finished cell are omitted; unfinished cells, or too few networks for a loss,
    prevent a confirmation. ``table`` is its name in the claims, as "Table 1".
    """
    decisions: list[Decision] = []
    in_print = [cell.row.reported.loss for cell in cells if cell.row.reported and cell.row.possible]
    if not in_print:  # of another setting
        return []
    printed = max(in_print)
    for width in dict.fromkeys(cell.row.labels["target width"] for cell in cells):
        same = [cell for cell in cells if cell.row.labels["target width"] == width]
        paper, minimum, exact = (
            [cell for cell in same if cell.row.labels["solver"] == way] for way in WAYS
        )
        common = {"table": table, "width": width, "per": PER, "printed": printed}
        decisions += [
            (name, verdict, {**numbers, **common, "finding": width in LISTED[name]})
            for name, verdict, numbers in (
                *_losses("enough", minimum, printed),
                *_variations(paper, printed, width),
                *_more(paper, minimum),
                *_unchanged("near perfect", exact),
            )
        ]
    return decisions


def _losses(name: str, cells: Sequence[Cell], margin: float) -> Iterator[Decision]:
    """Whether all mean losses are between -margin and margin."""
    losses = [cell.result.loss if cell.result else None for cell in cells]
    finished = [loss for loss in losses if loss is not None]
    if not finished:
        return
    several = any(loss.n > 1 for loss in finished)
    least, most = farthest_ends(finished)
    ends = TEXT.sentence("intervals" if several else "one seed", least=least, most=most)
    between = span((loss.mean for loss in finished), "z.2f")
    once = "" if several else "one seed: "
    numbers = {"means": f"{between}, {ends}", "range": between, "once": once}
    yield name, intervals.decide_within(losses, margin), numbers | _networks(cells)


def _variations(cells: Sequence[Cell], margin: float, width: str) -> Iterator[Decision]:
    """Whether losses by the paper's solver are small: a statement on the paper's size."""
    for name, verdict, numbers in _losses("variations", cells, margin):
        yield name, verdict if width == str(WIDTH) else SMALLER, numbers


def _unchanged(name: str, cells: Sequence[Cell]) -> Iterator[Decision]:
    """Whether every network predicts at most MOST_CHANGED of 10,000 images differently.

    This bounds each network's loss of accuracy, so one network per cell is enough.
    """
    counted = [max(rates) for cell in cells if (rates := _changed_rates(cell))]
    if not any(cell.result for cell in cells):
        return
    verdict = "confirmed" if len(counted) == len(cells) else "undecided"
    if counted and max(counted) > MOST_CHANGED:
        verdict = "contradicted"
    yield name, verdict, {"most": MOST_CHANGED} | _networks(cells)


def _networks(cells: Sequence[Cell]) -> dict[str, Any]:
    """The numbers of finished cells and networks, and of changed predictions."""
    results = results_of(cells)
    labels = [cell.row.labels["target"] for cell in cells]
    at_length = any("epochs" in label for label in labels)
    # Of targets trained once more, by another seed or not for the paper's epochs
    other = [
        cell
        for cell, label in zip(cells, labels, strict=True)
        if "seed" in label or (at_length and "epochs" not in label)
    ]
    more = len(results_of(other))
    epochs = sorted({cell.config.train.epochs for cell in other})
    kind = "targets of other training seeds"
    if at_length:
        kind = f"targets trained for {' or '.join(map(str, epochs))} epochs"
    most = max(cells, key=lambda cell: mean(_changed_rates(cell) or [0]))  # a mean loss may hide it
    target, features = _target_and_features(most)
    if at_length and "epochs" not in target:
        target += f", {most.config.train.epochs} epochs"
    worst = f", at most {changed_predictions([most])} in a cell ({target}, {features})"
    return {
        "changed": changed_predictions(cells),
        "worst": worst if any(_changed_rates(most)) else "",
        "finished": len(results) - more,
        "cells": f"{CELLS} cells",
        "others": f" plus {more} on {kind}" if more else "",
    }


def _more(paper: Sequence[Cell], minimum: Sequence[Cell]) -> Iterator[Decision]:
    """Whether the paper's solver leaves more images predicted differently.

    Paired by cell, as both have the same features; averaged by target, as cells share its errors.
    Part of a printed table's cells decides nothing.
    """
    same = {_target_and_features(cell): cell for cell in minimum}
    by_target: dict[str, list[tuple[float, float]]] = {}
    for cell in paper:
        one, other = _changed_rates(cell), _changed_rates(same.get(_target_and_features(cell)))
        if one and other:
            pair = (sum(one) / len(one), sum(other) / len(other))
            by_target.setdefault(cell.row.labels["target"], []).append(pair)
    if not by_target:
        return
    means = [tuple(map(mean, zip(*pairs, strict=True))) for pairs in by_target.values()]
    differences = [one - other for one, other in means]
    pairs = [pair for target in by_target.values() for pair in target]
    difference = mean_interval(differences)
    numbers = {
        "paper": mean(one for one, _ in means),
        "minimum": mean(other for _, other in means),
        "compared": len(pairs),
        "cells": count_of(len(paper), "cell"),
        "difference": f"{difference:.1f}",
        "each": ", ".join(f"{d:+.1f}" for d in differences),
        "more": sum(one > other for one, other in pairs),
        "pairs": count_of(len(pairs), "cell"),
    }
    whole = len(pairs) == len(paper) and _networks(paper)["finished"] == CELLS
    yield "more", intervals.decide([difference if whole else None]), numbers


def _target_and_features(cell: Cell) -> tuple[str, ...]:
    """What a cell shares with the cells of other ways."""
    return tuple(cell.row.labels[name] for name in ("target", "features"))


def _changed_rates(cell: Cell | None) -> list[float]:
    """Images of 10,000 that each network of a cell predicts differently; none if one is unknown."""
    seeds = cell.result.seeds if cell and cell.result else ()
    rates = [PER * one.differ / one.images for seed in seeds if (one := seed.predictions)]
    return rates if len(rates) == len(seeds) else []
