"""Figure 4, left: test error against the teacher's width, at the width that Theorem 1 asks for."""

from __future__ import annotations

import pandas as pd

from bnrecon.reproduction.parts import Decisions, part
from bnrecon.studies.giannou2023 import comparison
from bnrecon.studies.giannou2023.teacher import SIZES

LARGEST = max(SIZES["paper"].rates)  # the same at every scale


def decide(rows: pd.DataFrame) -> Decisions:
    """What Appendix E says about the left panel."""
    sides = sorted(int(side) for side in rows["side"].unique())
    teacher = comparison.where_better(rows, "side", "teacher", "baseline")
    student = comparison.where_better(rows, "side", "student", "baseline")
    errors = comparison.paired_errors(rows, "side")
    chosen = rows[rows["method"] == "baseline"].drop_duplicates("side")
    best = best_schedules(rows)
    constant_best = int((best == "constant").sum())
    numbers = {
        "sides": len(sides),
        "teacher": len(teacher),
        "student": len(student),
        "factor": (errors["baseline"] / errors["student"]).min(),
        "constant": int((chosen["schedule"] == "constant").sum()),
        "largest": int((chosen["learning_rate"] == LARGEST).sum()),
        "others": f"its mean test error over all runs is the least at {constant_best}"
        if len(best)
        else "the other runs do not compare schedules",
    }
    compared = {0: False, len(sides): True} if len(best) == len(sides) else {}
    verdicts = {"both": teacher == student == sides, "student": student == sides}
    return verdicts | {"schedule": compared.get(constant_best, "undecided")}, numbers | SIZES


def best_schedules(rows: pd.DataFrame) -> pd.Series:
    """By d, the schedule of the least test error, each with the rate that validation selects.

    Both errors are means over runs; a setting with which one diverged is out. Empty where one run
    alone selects.
    """
    tried = rows[rows["method"] == "tried"]
    if tried.empty:
        return pd.Series(dtype=object)
    errors = tried.groupby(["side", "schedule", "learning_rate"])[["validation", "mse"]]
    means = errors.agg(lambda column: column.mean(skipna=False)).dropna()
    selected = means.loc[means.groupby(["side", "schedule"])["validation"].idxmin(), "mse"]
    return selected.groupby("side").idxmin().str[1]


TASKS = comparison.compared_tasks("side")
PART = part(__file__, TASKS, comparison.summarize_methods, comparison.draw_panel, decide)
