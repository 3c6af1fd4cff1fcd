"""Whole networks with a nonlinear first layer (Burkholz 2024, Theorem 2.4)."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

from bnrecon.reporting.figures import PAGE, PALETTE, Figure, new_figure
from bnrecon.reporting.wording import count_of
from bnrecon.reproduction.parts import Decisions, only, read_text
from bnrecon.studies.burkholz2024.run_tables.row import Cell, results_of
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable, list_rows

EPSILONS = {"tanh": ("1", "1e-2"), "sigmoid": ("100", "10", "1", "1e-1")}


def decide(cells: Sequence[Cell]) -> Decisions:
    """Does a network keep L times its L layers' bound? Decided where the layers keep theirs."""
    smooth = [cell for cell in cells if cell.config.features.activation in EPSILONS]
    # The largest logit differences over the bound
    converged, unconverged = list[float](), list[float]()
    for cell in smooth:
        if (result := cell.result) is not None:
            bound = len(result.seeds[0].layers) * cell.config.features.epsilon
            share = result.evaluation.largest_difference_to_target / bound
            (unconverged if result.unconverged else converged).append(share)
    if not converged:
        return []
    within = all(share <= 1 for share in converged)  # NaN is not
    holds = "confirmed" if len(converged) + len(unconverged) == len(smooth) else "undecided"
    listed = ", ".join(f"{share:.0%}" for share in unconverged)
    words = f"; by {listed} where some layers exceed it" if unconverged else ""
    numbers = {"kept": count_of(len(converged), "network"), "most": max(converged), "others": words}
    return {"Sect. 2.4": holds if within else "contradicted"}, numbers


def draw(cells: Sequence[Cell]) -> Figure:
    """Draw images predicted differently and the largest logit difference against epsilon."""
    figure, (left, right) = new_figure(1, 2, (PAGE, 2.9))
    for activation, colour in zip(EPSILONS, PALETTE, strict=False):
        chosen = [cell for cell in cells if cell.config.features.activation == activation]
        results = results_of(chosen)
        epsilons = [cell.config.features.epsilon for cell in chosen]
        counts = [result.predictions.differ if result.predictions else nan for result in results]
        left.plot(epsilons, counts, marker="o", color=colour, label=activation)
        differences = [result.evaluation.largest_difference_to_target for result in results]
        right.loglog(epsilons, differences, marker="o", color=colour, label=activation)
    left.set_xscale("log")
    left.set_yscale("symlog", linthresh=10)
    left.yaxis.set_major_formatter("{x:g}")
    left.set_ylim(-0.5, 2 * max(left.get_ylim()[1], 500))
    left.set_ylabel("changed predictions")
    right.set_ylabel("largest difference of a logit")
    seeds = count_of(max(len(result.seeds) for result in results_of(cells)), "source seed")
    for letter, axes in zip("ab", (left, right), strict=True):
        axes.set_title(f"({letter}) width {cells[0].config.target.width}, {seeds}")
        axes.set_xlabel("epsilon of a layer (Theorem 2.4)")
        axes.legend()
    return figure


RUNS: dict[str, tuple[str, ...]] = {"relu": ("features.activation=relu",)} | {
    f"{name}, {epsilon}": (f"features.activation={name}", f"features.epsilon={float(epsilon):g}")
    for name, epsilons in EPSILONS.items()
    for epsilon in epsilons
}
PART = RunTable(
    read_text(__file__),
    list_rows(
        "activation, epsilon of a layer",
        ("target=vgg18", "data=cifar10", "features=he_normal", "solver=auto", "seeds=[0]"),
        {
            "smoke": ("scale=smoke", "evaluate=source"),
            "laptop": ("scale=laptop", "target.width=16", "evaluate=source"),
            "paper": ("scale=paper", "target.width=64", "evaluate=source"),
        },
        RUNS,
    ),
    draw,
    decide,
    only(drop=["max. layer error", "max. error as assembled"]),
)
