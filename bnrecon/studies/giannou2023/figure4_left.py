"""Figure 4, left: test error against the teacher's width, at the width that Theorem 1 asks for."""

from __future__ import annotations

import pandas as pd

from bnrecon.reproduction.parts import Decisions, part
from bnrecon.studies.giannou2023 import comparison
from bnrecon.studies.giannou2023.batched_training import LEARNING_RATES
from bnrecon.studies.giannou2023.teacher import SIZES


def decide(rows: pd.DataFrame) -> Decisions:
    """What Appendix E says about the left panel."""
    sides = sorted(int(side) for side in rows["side"].unique())
    teacher = comparison.where_better(rows, "side", "teacher", "baseline")
    student = comparison.where_better(rows, "side", "student", "baseline")
    errors = comparison.paired_errors(rows, "side")
    chosen = rows[rows["method"] == "baseline"].drop_duplicates("side")
    numbers = {
        "sides": len(sides),
        "teacher": len(teacher),
        "student": len(student),
        "factor": (errors["baseline"] / errors["student"]).min(),
        "constant": int((chosen["schedule"] == "constant").sum()),
        "largest": int((chosen["learning_rate"] == max(LEARNING_RATES)).sum()),
    }
    verdicts = {"both": teacher == student == sides, "student": student == sides}
    return verdicts | {"schedule": "undecided"}, numbers | SIZES


TASKS = comparison.compared_tasks("side")
PART = part(__file__, TASKS, comparison.summarize_methods, comparison.draw_panel, decide)
