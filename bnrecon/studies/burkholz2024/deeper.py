"""Deeper sources: draws rebuilt against the total width (Burkholz 2024, Theorem 2.5)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.burkholz2024.deeper_sources import (
    BEYOND,
    SETTINGS,
    SUCCESS,
    Setting,
    success_rates,
)

__all__ = ["PART"]

DRAWS = {"smoke": 2, "laptop": 20, "paper": 100}
COLOURS = dict(zip((2, 3, 4), PALETTE, strict=False))
MARKERS = {2: "o", 3: "s", 4: "^"}


def tasks(scale: str, _: Sequence[str]) -> list[Task]:
    """A task for each setting."""
    return [
        Task(
            f"{setting.name}, L = {setting.layers}",
            rates,
            {"setting": dataclasses.asdict(setting), "draws": DRAWS[scale]},
        )
        for setting in SETTINGS
    ]


def rates(setting: dict[str, Any], draws: int) -> pd.DataFrame:
    """The share of draws that are rebuilt, by total width."""
    return success_rates(Setting(**setting), draws)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per target and depth: draws rebuilt, and the dimensions reachable at n + L."""
    lines = []
    for (target, layers), group in rows.groupby(["target", "layers"], sort=False):
        line = {"target": target, "L": layers, "n": int(group["n"].iloc[0])}
        at = group[group["beyond"] == 1].iloc[0]
        line["widths at n + L"] = at["widths"]
        line["reachable dimensions at n + L"] = f"{at['reachable_dimensions']} of {at['n']}"
        for beyond in BEYOND:
            found = group[group["beyond"] == beyond]
            offset = f" + L {'-' if beyond < 1 else '+'} {abs(beyond - 1)}".replace(" + 0", "")
            line[f"n{offset}"] = (
                "" if found.empty else f"{found['rebuilt'].iloc[0]} of {found['draws'].iloc[0]}"
            )
        lines.append(line)
    return pd.DataFrame(lines)


def caption(rows: pd.DataFrame) -> str:
    """What was computed, and what the rows at total width n + L say about the theorem."""
    text = (
        "Random targets, He-normal weights; the first kernel covers the target's, the others are "
        "1x1. Levenberg-Marquardt from random starts in float64; rebuilt means a relative error of "
        f"at most {SUCCESS:.0e}. Reachable dimensions: rank of the Jacobian at random scales; "
        "where it is below n, almost no target is reached."
    )
    return " ".join([text, *_failing_searches(rows), *_open_settings(rows), *_refutations(rows)])


def _names(rows: pd.DataFrame) -> str:
    names = rows["target"] + " (L = " + rows["layers"].astype(str) + ")"
    return "; ".join(names.drop_duplicates())


def _failing_searches(rows: pd.DataFrame) -> list[str]:
    """Failures of the search where Theorem 2.2 gives the solution: two layers, total n + 1."""
    two = rows[(rows["layers"] == 2) & (rows["beyond"] == 0)]
    failures = int((two["draws"] - two["rebuilt"]).sum())
    if not failures:
        return []
    return [
        f"At L = 2 and n + 1, Theorem 2.2 gives the solution: the {failures} failures of "
        f"{int(two['draws'].sum())} draws there are the search's."
    ]


def _open_settings(rows: pd.DataFrame) -> list[str]:
    """Settings where all dimensions are reachable at n + L and yet the search finds few."""
    at = rows[rows["beyond"] == 1]
    full = at[at["reachable_dimensions"] >= at["n"]]
    few = full[full["rebuilt"] < full["draws"] / 2]
    if few.empty:
        return []
    return [
        "All n dimensions are reachable at n + L, and yet the search rebuilds less than half of "
        f"the draws, for: {_names(few)}. Whether solutions exist there is open."
    ]


def _refutations(rows: pd.DataFrame) -> list[str]:
    """Settings within the theorem's conditions where fewer than n dimensions are reachable."""
    counterexamples = _counterexamples(rows)
    if counterexamples.empty:
        return []
    return [
        f"Counterexamples to the theorem: {_names(counterexamples)}. They meet its conditions "
        "(total width n + L, c_l >= c0 in every layer, as (iii) is read), and no draw is rebuilt: "
        "up to the last scales, a target's rows have to lie in the first layer's row space and its "
        "columns in the last layer's column space."
    ]


def _counterexamples(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows at total width n + L that cannot reach n dimensions, and rebuild no draw."""
    at = rows[rows["beyond"] == 1]
    return at[(at["reachable_dimensions"] < at["n"]) & (at["rebuilt"] == 0)]


def claims(rows: pd.DataFrame) -> list[Claim]:
    """The theorem, at its total width."""
    at, counterexamples = rows[rows["beyond"] == 1], _counterexamples(rows)
    most = at[at["rebuilt"] > at["draws"] / 2]
    evidence = (
        f"at total width n + L most draws are rebuilt in {len(most)} of {len(at)} settings of a "
        "target and a depth"
    )
    if len(counterexamples):
        evidence += (
            f"; {len(counterexamples)} settings that meet the conditions reach fewer than n "
            "dimensions (erratum 4)"
        )
    verdict = "confirmed" if 0 < len(most) == len(at) else "open"
    return [
        Claim(
            "Theorem 2.5",
            "L random layers of at least c0 channels each (as (iii) is read), n + L in sum, "
            "represent a target with high probability.",
            "false as stated" if len(counterexamples) else verdict,
            f"{evidence}.",
        )
    ]


def draw(rows: pd.DataFrame) -> Figure:
    """Share of draws rebuilt against total width, a panel a target, a line a depth."""
    names = list(dict.fromkeys(rows["target"]))
    columns = -(-len(names) // 2)
    figure, grid = new_figure(2, columns, (PAGE, 3.8), sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for letter, axes, name in zip("abcdefgh", grid.flat, names, strict=False):
        part = rows[rows["target"] == name]
        for layers, points in part.groupby("layers"):
            share = points["rebuilt"] / points["draws"]
            low, high = share - points["low"], points["high"] - share
            axes.errorbar(
                points["beyond"] - 1 + 0.15 * (layers - 3),  # side by side where they agree
                share,
                [low.clip(lower=0), high.clip(lower=0)],
                marker=MARKERS.get(layers),
                markersize=3,
                linewidth=1,
                capsize=2,
                color=COLOURS.get(layers),
                label=f"L = {layers}",
            )
        title = name.replace(", ", ",\n")
        axes.set_title(f"({letter}) {title}")
        axes.axvline(0, color="grey", linewidth=1, linestyle=":")
    for axes in grid.flat[max(0, len(names) - columns) : len(names)]:
        axes.set_xlabel("Σ c_l - (n + L)")
        axes.tick_params(labelbottom=True)
    for row in grid:
        row[0].set_ylabel("share of draws rebuilt")
    handles = dict(_labelled(grid.flat))
    draws = " or ".join(map(str, sorted(set(rows["draws"]))))
    figure.legend(
        handles.values(),
        handles.keys(),
        title=f"{draws} draws a point,\n95% intervals; dotted:\nn + L (Theorem 2.5)",
        loc="lower right",
    )
    return figure


def _labelled(panels: Iterable[Axes]) -> list[tuple[str, Any]]:
    """Labels with their handles, in alphabetical order."""
    found = [
        (label, handle)
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    ]
    return sorted(found, key=lambda pair: pair[0])


PART = Experiment(
    "Theorem 2.5",
    "Deeper sources: draws rebuilt against the total width",
    tasks,
    summary,
    caption,
    draw,
    claims=claims,
)
