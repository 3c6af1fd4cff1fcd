"""The width at which targets become reachable (Burkholz 2024, Lemma 2.1, Theorems 2.2, 2.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.burkholz2024.width_threshold import SETTINGS, SUCCESS, Setting, success_rates

__all__ = ["PART"]

DRAWS = {"smoke": 3, "laptop": 50, "paper": 200}
TARGETS = {"random": (PALETTE[0], "o"), "pathological": (PALETTE[3], "s")}


def tasks(scale: str, _: Sequence[str]) -> list[Task]:
    """A task for each setting."""
    return [
        Task(setting.name, rates, {"setting": dataclasses.asdict(setting), "draws": DRAWS[scale]})
        for setting in SETTINGS
    ]


def rates(setting: dict[str, int], draws: int) -> pd.DataFrame:
    """The share of draws that are rebuilt, by width."""
    return success_rates(Setting(**setting), draws)


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per setting and kind of target: the width from which every draw was rebuilt."""
    lines = []
    for (kernels, kind), group in rows.groupby(["kernels", "target"], sort=False):
        failing = group[group["rebuilt"] < group["draws"]]
        least = int(group["c1"].min()) if failing.empty else int(failing["c1"].max()) + 1
        n, minimum = int(group["n"].iloc[0]), int(group["minimum_width"].iloc[0])
        below = group[group["c1"] < least]
        lines.append(
            {
                "kernels": kernels,
                "target": kind,
                "n": n,
                "n - c2 + 1 (Theorem 2.2)": minimum,
                "every draw rebuilt from c1 =": f"{least}{' (n)' if least == n else ''}",
                "draws per width": int(group["draws"].iloc[0]),
                "rebuilt below": f"{int(below['rebuilt'].sum())} of {int(below['draws'].sum())}",
            }
        )
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """The share of draws rebuilt against features beyond the minimum width, with intervals."""
    names = list(dict.fromkeys(rows["kernels"]))
    figure, grid = new_figure(-(-len(names) // 3), 3, (PAGE, 4.0), sharey=True, squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for letter, axes, name in zip("abcdefghi", grid.flat, names, strict=False):
        part = rows[rows["kernels"] == name]
        for target, (colour, marker) in TARGETS.items():
            points = part[part["target"] == target].sort_values("c1")
            if points.empty:
                continue
            share = points["rebuilt"] / points["draws"]
            low, high = share - points["low"], points["high"] - share
            axes.errorbar(
                points["beyond_minimum"],
                share,
                [low.clip(lower=0), high.clip(lower=0)],
                marker=marker,
                color=colour,
                capsize=2,
                label=target,
            )
        first = part.iloc[0]
        axes.axvline(0, color="grey", linewidth=1, linestyle=":")
        axes.axvline(first["n"] - first["minimum_width"], color="grey", linewidth=1, linestyle="--")
        axes.set_title(f"({letter}) {name}")
        axes.set_xlabel(f"c1 - (n - c2 + 1), n = {first['n']}")
    for row in grid:
        row[0].set_ylabel("share of draws rebuilt")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    draws = " or ".join(map(str, sorted(set(rows["draws"]))))
    figure.suptitle(
        f"{draws} draws a point, 95% intervals; dotted: minimum width (Theorem 2.2); dashed: n "
        "(Theorem 2.3)",
        fontsize=8,
    )
    return figure


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Both theorems: what is rebuilt from their widths on, and what below."""
    random = rows[rows["target"] == "random"]
    enough = rows["c1"] >= rows["n"]
    wide, narrow = (
        random[random["c1"] >= random["minimum_width"]],
        random[random["c1"] < random["minimum_width"]],
    )
    made, any_target = rows[(rows["target"] == "pathological") & ~enough], rows[enough]
    return [
        Claim(
            "Theorem 2.2",
            "n - c2 + 1 features represent a target that does not depend on them.",
            "confirmed" if _all_rebuilt(wide) else "contradicted",
            f"random targets: {_rebuilt(wide)} draws rebuilt from this width on, "
            f"{_rebuilt(narrow)} below ({rows['kernels'].nunique()} settings of the kernels).",
        ),
        Claim(
            "Theorem 2.3",
            "n features represent any target.",
            "confirmed" if _all_rebuilt(any_target) else "contradicted",
            f"{_rebuilt(any_target)} draws rebuilt from n features on, among them targets that "
            f"were made from the features; of these, {_rebuilt(made)} with fewer.",
        ),
    ]


def _all_rebuilt(rows: pd.DataFrame) -> bool:
    return bool((rows["rebuilt"] == rows["draws"]).all())


def _rebuilt(rows: pd.DataFrame) -> str:
    """As "300 of 300"."""
    return f"{int(rows['rebuilt'].sum()):,} of {int(rows['draws'].sum()):,}"


PART = Experiment(
    "Lemma 2.1, Theorems 2.2 and 2.3",
    "Width at which targets become reachable",
    tasks,
    summary,
    f"A draw counts as rebuilt up to a relative error of {SUCCESS:.0e} over the whole composed "
    "kernel (float64); second scales are free below n features. Pathological targets are made "
    "from the features for the width that they are tried at (at n and above: for n - 1): Theorem "
    "2.2 has to exclude them, Theorem 2.3 does not.",
    draw,
    claims=claims,
)
