"""The width at which targets become reachable (Burkholz 2024, Lemma 2.1, Theorems 2.2, 2.3)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Task
from bnrecon.reproduction.texts import Decisions, part
from bnrecon.studies.burkholz2024.draws import draw_shares
from bnrecon.studies.burkholz2024.width_threshold import SETTINGS, Setting, success_rates

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
        of_kernels = rows[rows["kernels"] == name]
        for target, (colour, marker) in TARGETS.items():
            points = of_kernels[of_kernels["target"] == target].sort_values("c1")
            if points.empty:
                continue
            style = {"marker": marker, "color": colour, "label": target}
            draw_shares(axes, points["beyond_minimum"], points, **style)
        first = of_kernels.iloc[0]
        axes.axvline(0, color="grey", linewidth=1, linestyle=":")
        axes.axvline(first["n"] - first["minimum_width"], color="grey", linewidth=1, linestyle="--")
        axes.set_title(f"({letter}) {name}")
        axes.set_xlabel(f"c1 - (n - c2 + 1), n = {first['n']}")
    for row in grid:
        row[0].set_ylabel("share of draws rebuilt")
    figure.legend(*grid[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    draws = " or ".join(map(str, sorted(set(rows["draws"]))))
    figure.suptitle(
        f"{draws} draws a point, 95% intervals; dotted: minimum width (Theorem 2.2); dashed: n "
        "(Theorem 2.3)",
        fontsize=8,
    )
    return figure


def judge(rows: pd.DataFrame) -> Decisions:
    """Both theorems: what is rebuilt from their widths on, and what below."""
    is_random, reached = rows["target"] == "random", rows["c1"] >= rows["minimum_width"]
    enough = rows["c1"] >= rows["n"]
    parts = {"wide": is_random & reached, "narrow": is_random & ~reached}
    parts |= {"enough": enough, "made": ~is_random & ~enough}
    numbers: dict[str, Any] = {"settings": rows["kernels"].nunique()}
    for name, chosen in parts.items():
        rebuilt, draws = rows.loc[chosen, ["rebuilt", "draws"]].sum().astype(int)
        numbers[name] = f"{rebuilt:,} of {draws:,}"
    all_rebuilt = rows["rebuilt"] == rows["draws"]
    verdicts = {
        "Theorem 2.2": bool(all_rebuilt[is_random & reached].all()),
        "Theorem 2.3": bool(all_rebuilt[enough].all()),
    }
    return verdicts, numbers


PART = part(__file__, tasks, summary, draw, judge)
