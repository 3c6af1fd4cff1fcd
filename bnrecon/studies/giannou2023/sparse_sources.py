"""Figure 5: the panels of Figure 4 side by side, with most frozen weights zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.figures import PAGE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.giannou2023.comparison import (
    draw_methods,
    middle_range,
    summarize_methods,
    where_better,
)
from bnrecon.studies.giannou2023.figure4_left import side_tasks
from bnrecon.studies.giannou2023.figure4_right import TEACHER, width_tasks

__all__ = ["claims_at_5_percent", "claims_at_20_percent", "sparse_experiment"]


def sparse_experiment(
    where: str, density: float, claims: Callable[[pd.DataFrame], Sequence[Claim]]
) -> Experiment:
    """Both panels for frozen weights of which a share ``density`` is not zero."""
    return Experiment(
        where,
        f"The same with {density:.0%} of the frozen weights nonzero",
        _tasks(density),
        summarize,
        "As in Figure 4. The construction takes the pseudo-inverse's scales where the system is "
        "singular. With a share p of nonzero weights a column of the system is zero with "
        "probability 1 - (1 - (1 - p)^d)².",
        draw,
        claims=claims,
    )


def _tasks(density: float) -> Callable[[str, Sequence[str]], list[Task]]:
    def tasks(scale: str, options: Sequence[str]) -> list[Task]:
        left, right = side_tasks(scale, density), width_tasks(scale, density)
        known = [task.arguments for task in left]
        return left + [task for task in right if task.arguments not in known]

    return tasks


def split_panels(rows: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows of the left panel, source width d², and of the right one, a single d."""
    left = rows[rows["width"] == rows["side"] ** 2].drop_duplicates(["side", "method", "run"])
    sides = rows["side"].unique()
    side = next((side for side in TEACHER.values() if side in sides), sides[0])
    right = rows[rows["side"] == side].drop_duplicates(["width", "method", "run"])
    return left, right


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """The lines of both panels, one after the other."""
    left, right = split_panels(rows)
    upper = summarize_methods(left, "side", "teacher width d")
    lower = summarize_methods(right, "width", "source width")
    lower.insert(0, "teacher width d", int(right["side"].iloc[0]))
    return pd.concat([part for part in (upper, lower) if len(part)], ignore_index=True)


def draw(rows: pd.DataFrame) -> Figure:
    """The paper's two panels."""
    figure, (first, second) = new_figure(1, 2, (PAGE, 2.6))
    left, right = split_panels(rows)
    draw_methods(first, left, "side")
    first.set_xlabel("width d of the teacher (source width d²)")
    draw_methods(second, right, "width")
    second.set_xlabel(f"width c of the source (teacher width {int(right['side'].iloc[0])})")
    (first if len(left) else second).legend()
    return figure


def claims_at_20_percent(rows: pd.DataFrame) -> list[Claim]:
    """What Appendix E says about Figure 5a."""
    left, _ = split_panels(rows)
    errors = {
        int(side): {
            method: middle_range(part["mse"])[0] for method, part in group.groupby("method")
        }
        for side, group in left.groupby("side", sort=True)
    }
    if len(errors) < 2:
        return []  # the claim compares widths
    small, large = errors[min(errors)], errors[max(errors)]
    far = small["student"] / small["dense"], large["student"] / large["dense"]
    holds = far[0] > 10 and far[1] < 2 and large["teacher"] < 1e-3 * small["teacher"]
    return [
        Claim(
            "Appendix E, Figure 5a",
            "Where d is small, the construction is far from what it is made of; as d grows, it "
            "comes close, and from the teacher it has almost no error.",
            "confirmed" if holds else "not confirmed",
            f"construction from the learnt network over that network: {far[0]:.2g} at d = "
            f"{min(errors)}, {far[1]:.2g} at d = {max(errors)}; construction from the teacher: "
            f"{small['teacher']:.1e} and {large['teacher']:.1e}.",
        )
    ]


def claims_at_5_percent(rows: pd.DataFrame) -> list[Claim]:
    """What Appendix E says about Figure 5b."""
    left, right = split_panels(rows)
    both = pd.concat([left, right]).drop_duplicates(["side", "width", "method", "run"])
    settings = both.groupby(["side", "width"])
    share = both.assign(share=both["mse"] / both["variance"])
    least = share[share["method"] != "dense"]["share"].min()
    better = where_better(left, "side", "baseline", "student")
    wins = len(set(better) & set(where_better(left, "side", "baseline", "teacher")))
    narrow = set(where_better(right, "width", "baseline", "student"))
    narrow &= set(where_better(right, "width", "baseline", "teacher"))
    holds = least > 0.01 and wins == left["side"].nunique()
    return [
        Claim(
            "Appendix E, Figure 5b",
            '"None of the algorithms achieve small loss. However, SGD still achieves much better '
            'loss."',
            "confirmed" if holds else "not confirmed",
            f"smallest loss of all over {len(settings)} settings {least:.2g} of the variance; "
            f"every middle run of SGD is better than both constructions at {wins} of "
            f"{left['side'].nunique()} teacher widths and {len(narrow)} of "
            f"{right['width'].nunique()} source widths.",
        )
    ]
