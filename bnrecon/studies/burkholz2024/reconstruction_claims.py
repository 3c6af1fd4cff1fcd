"""What Burkholz 2024, Sect. 3, says of Tables 1 and 2, decided by the runs of their cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import mean

from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reproduction.experiment import Claim
from bnrecon.reproduction.intervals import decide, decide_within, geometric_mean
from bnrecon.studies.burkholz2024.run_tables.row import Cell
from bnrecon.studies.burkholz2024.run_tables.row_numbers import predicted_otherwise
from bnrecon.studies.burkholz2024.run_tables.verdicts import EQUIVALENT

__all__ = ["reconstruction_claims"]

PER = 10_000  # test images of one network
READING = f"Read here as: the mean loss of every cell is within ±{EQUIVALENT} points"
ENOUGH = (
    "Random features reconstruct a target with as many trainable parameters as represent it. "
    f"{READING}, with n - c2 + 1 features a layer and solver=auto"
)
NEAR_PERFECT = (
    "With 1.5 n features and solver=auto the reconstruction is near perfect (the paper says so of "
    f"LBFGS: part excess). {READING}"
)
VARIATIONS = (
    "The approximation error induces small variations of the performance. Read here as: the "
    "paper's solver leaves more images predicted otherwise than solver=auto does with the same "
    "features"
)


def reconstruction_claims(where: str) -> Callable[[Sequence[Cell]], list[Claim]]:
    """The claims on a table whose cells are rebuilt in three ways, by the width of the targets.

    Args:
        where: the table.

    Returns:
        A function of the table's cells, finished or not. A claim of which no cell is finished is
        left out; one of which a cell is not finished, or has one network, is open.
    """

    def claims(cells: Sequence[Cell]) -> list[Claim]:
        found = []
        for width in dict.fromkeys(cell.row.labels["target width"] for cell in cells):
            paper, minimum, exact = (
                [
                    cell
                    for cell in cells
                    if (cell.row.labels["target width"], cell.row.labels["solver"]) == (width, way)
                ]
                for way in ("paper", "minimum", "exact")
            )
            here = f"(here targets of width {width})."
            found += [
                _losses(f"Sect. 3.2, {where}", f"{ENOUGH} {here}", minimum),
                _variations(f"Sect. 3.2, {where}", f"{VARIATIONS} {here}", paper, minimum),
                _losses(f"Beyond Sect. 3.1, {where}", f"{NEAR_PERFECT} {here}", exact),
            ]
        return [claim for claim in found if claim is not None]

    return claims


def _losses(where: str, statement: str, cells: Sequence[Cell]) -> Claim | None:
    """Whether all mean losses are about 0."""
    losses = [None if cell.result is None else cell.result.loss for cell in cells]
    known = [loss for loss in losses if loss is not None]
    if not known:
        return None
    ends = [end for loss in known for end in (loss.ends if loss.n > 1 else (loss.mean,))]
    networks = sum(loss.n for loss in known)
    what = "mean losses with the ends of their intervals" if networks > len(known) else "losses"
    finished = [cell for cell in cells if cell.result is not None]
    evidence = (
        f"images predicted otherwise: {predicted_otherwise(finished)}; {what}: "
        f"{min(ends):z.2f} to {max(ends):z.2f} ({len(known)} of {_many(len(cells), 'cell')}, "
        f"{_many(networks, 'network')})."
    )
    return Claim(where, statement, decide_within(losses, EQUIVALENT), evidence)


def _variations(
    where: str, statement: str, paper: Sequence[Cell], minimum: Sequence[Cell]
) -> Claim | None:
    """Paired by cell, since both have the same features, and averaged by target.

    Cells of one target share its errors, and are not independent.
    """
    same = {_place(cell): cell for cell in minimum}
    by_target: dict[str, list[tuple[float, float]]] = {}
    for cell in paper:
        pair = _otherwise(cell), _otherwise(same.get(_place(cell)))
        if pair[0] is not None and pair[1] is not None:
            by_target.setdefault(cell.row.labels["target"], []).append((pair[0], pair[1]))
    if not by_target:
        return None
    found = [tuple(map(mean, zip(*pairs, strict=True))) for pairs in by_target.values()]
    first, second = map(mean, zip(*found, strict=True))
    differences = [one - other for one, other in found]
    pairs = [pair for target in by_target.values() for pair in target]
    more = sum(one > other for one, other in pairs)
    difference, each = mean_interval(differences), ", ".join(f"{d:+.1f}" for d in differences)
    compared = len(pairs)
    whole = compared == len(paper)
    return Claim(
        where,
        statement,
        decide([difference if whole else None]),
        f"of {PER:,} test images a network predicts {first:.1f} otherwise than its target by the "
        f"paper's solver, and {second:.1f} by solver=auto ({compared} of "
        f"{_many(len(paper), 'cell')}, averaged by target). Difference: {_written(difference)}; "
        f"of each target: {each}. Added after looking, decides nothing: more by the paper's solver "
        f"in {more} of {_many(compared, 'cell')}{_ratio(found)}.",
    )


def _ratio(found: Sequence[tuple[float, ...]]) -> str:
    """How many times as many, where no target has none."""
    if len(found) < 2 or any(other == 0 for _, other in found):
        return ""
    times = geometric_mean(one / other for one, other in found)
    ends = f"{times.ends[0]:.2g} to {times.ends[1]:,.0f}"
    of = "geometric mean over targets, 95% Student-t interval"
    return f", {times.mean:.2g} ({ends}) times as many ({of})"


def _place(cell: Cell) -> tuple[str, ...]:
    """What a cell shares with those of the other ways."""
    return tuple(cell.row.labels[name] for name in ("target", "features"))


def _otherwise(cell: Cell | None) -> float | None:
    """Images of 10,000 that a cell's networks predict otherwise, their mean; ``None``: unknown."""
    if cell is None or cell.result is None:
        return None
    counts = [seed.predictions for seed in cell.result.seeds]
    known = [PER * one.differ / one.images for one in counts if one is not None]
    return sum(known) / len(known) if len(known) == len(counts) else None


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _written(interval: Interval) -> str:
    half = "" if interval.half_width is None else f" ± {interval.half_width:.1f}"
    interval_of = "" if interval.half_width is None else ", 95% Student-t interval over targets"
    return f"{interval.mean:.1f}{half} (targets: {interval.n}{interval_of})"
