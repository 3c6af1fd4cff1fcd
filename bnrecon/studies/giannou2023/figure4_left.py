"""Figure 4, left: test error against the teacher's width, at the width that Theorem 1 asks for."""

from __future__ import annotations

import pandas as pd

from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reporting.wording import span
from bnrecon.reproduction import intervals
from bnrecon.reproduction.parts import Decisions, only, part, read_text
from bnrecon.studies.giannou2023 import comparison
from bnrecon.studies.giannou2023.teacher import SIZES

TEXT = read_text(__file__)


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide Appendix E's claims about the left panel."""
    sides = sorted(int(side) for side in rows["side"].unique())
    teacher = comparison.where_better(rows, "side", "teacher", "baseline")
    student = comparison.where_better(rows, "side", "student", "baseline")
    errors = comparison.paired_errors(rows, "side")
    chosen = rows[rows["method"] == "baseline"].drop_duplicates("side")
    gains = constant_gains(rows)
    numbers = {
        "sides": len(sides),
        "teacher": len(teacher),
        "student": len(student),
        "factor": (errors["baseline"] / errors["student"]).min(),
        "constant": int((chosen["schedule"] == "constant").sum()),
        "rates": comparison.largest_rates(rows),
        "fairest": TEXT.sentence("few steps"),
        "schedules": TEXT.sentence("no comparison"),
    }
    if gains:
        tried = rows[rows["method"] == "tried"].groupby(["side", "run"])["mse"].min()
        least = (tried / errors["student"]).min()
        numbers["fairest"] = TEXT.sentence("best setting", least=least)
        share = comparison.median_share
        shares = (100 * share(group, "baseline") for _, group in rows.groupby("side"))
        numbers["schedules"] = TEXT.sentence(
            "by interval",
            higher=span((-gain.mean for gain in gains.values()), "z.2f"),
            error=span(shares, ".1f"),
            average=-mean_interval([gain.mean for gain in gains.values()]),
            runs=next(iter(gains.values())).n,
            clear=sum(gain.sign != 0 for gain in gains.values()),
            widths=len(gains),
        )
    verdicts = {"both": teacher == student == sides, "student": student == sides}
    return verdicts | {"schedule": intervals.decide(map(gains.get, sides))}, numbers | SIZES


def constant_gains(rows: pd.DataFrame) -> dict[int, Interval]:
    """By d, how much less SGD's test error is at a constant rate, in percent of the variance.

    For constant and other schedules, the runs' mean validation error selects the setting, without
    settings at which a run diverged. Widths without both are omitted; all are if only one run
    selects.
    """
    gains: dict[int, Interval] = {}
    for side, tried in rows[rows["method"] == "tried"].groupby("side"):
        shares = tried.assign(test=tried["mse"] / tried["variance"])
        by_setting = shares.pivot(index="run", columns=["schedule", "learning_rate"])
        validation = by_setting["validation"].mean(skipna=False).dropna()
        is_constant = validation.index.get_level_values("schedule") == "constant"
        if is_constant.all() or not is_constant.any():
            continue
        constant, other = (validation[which].idxmin() for which in (is_constant, ~is_constant))
        test = by_setting["test"]
        gains[int(side)] = mean_interval((100 * (test[other] - test[constant])).tolist())
    return gains


TASKS = comparison.compared_tasks("side")
EXCERPT = only(drop=comparison.ELSEWHERE)
PART = part(
    __file__, TASKS, comparison.summarize_methods, comparison.draw_panel, decide, excerpt=EXCERPT
)
