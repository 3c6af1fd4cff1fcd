"""Theorems 4.2 and 4.3 in simulation: is a sparse target found among sparse features?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from bnrecon.reporting.statistics import proportion_interval
from bnrecon.reproduction.parts import Decision, Decisions, join, only, part, sweep
from bnrecon.studies.random_features import sparse_matching

DRAWS = {"smoke": 200, "laptop": 20_000, "paper": 100_000}
ENUMERATED = {"smoke": 2, "laptop": 3, "paper": 3}  # c2 and c0 of enumerated targets
DENSITIES = [0.2, 0.5, 0.8, 0.95]  # of the features, in the enumeration
MOST_ROWS = 20_000  # more are not drawn
# c2, c0, q, p and δ of Theorem 4.3.
SETTINGS = (
    (1, 1, 0.5, 0.5, 1 / 16),
    (10, 20, 0.1, 0.7, 0.1),
    (10, 20, 0.2, 0.8, 0.1),
    (50, 50, 0.1, 0.9, 0.1),
    (10, 50, 0.2, 0.5, 0.1),
)
SPECIAL = (5, 10, 0.8, 0.1)  # our c2, d, p and δ for Fig. 1 (e)
DISJOINT = "own inputs"  # in the rows
SHOWN = "disjoint inputs"  # ``DISJOINT`` on the page
ANSWERS = {"yes": "holds in", "no": "fails in", "undecided": "is undecided in"}
ROUNDING = 1e-12  # tolerance for an exact probability that attains its bound
PARTITION = "found with the partition of A.2.4"


def simulate(draws: int) -> pd.DataFrame:
    """One row per statement and setting; large targets are drawn a twentieth as often."""
    few = max(50, draws // 20)
    rows = (*_bound_rows(draws, few), *_width_rows(draws, few), *_disjoint_rows(draws))
    return pd.DataFrame(rows)


def _simulated(
    theorem: str,
    setting: str,
    density: float,
    bound: tuple[str, float],
    make_target: sparse_matching.MakeTarget,
    rows: int,
    draws: int,
    partition: float = math.nan,
) -> dict[str, Any]:
    """One row: how often the target was found among ``rows`` rows of density p, if drawn.

    ``bound`` is "at most" or "at least", and the statement's probability; ``partition`` is that of
    the proof of Theorem 4.3.
    """
    matched, low, high = 0, math.nan, math.nan
    if draws:
        matched = sparse_matching.count_matches(make_target, rows, density, draws)
        low, high = proportion_interval(matched, draws)
    row = {"theorem": theorem, "setting": setting, "feature_density": density}
    row |= {"bound": bound[1], "bound_kind": bound[0], "matched": matched, "draws": draws}
    return row | {"share_low": low, "share_high": high, "partition_probability": partition}


def _bound_rows(draws: int, few: int) -> Iterator[dict[str, Any]]:
    """Theorem 4.2 where the paper says that its bound is attained, and for random targets."""
    for degree, inputs in ((1, 2), (2, 4)):
        density = 0.5 ** (1 / degree)  # p^d = 1/2
        target = _always(sparse_matching.disjoint_rows(2, inputs, degree))
        bound = ("at most", sparse_matching.degree_bound(np.array([degree] * 2), density, 2))
        setting = f"c2 = 2, d = {degree}, {DISJOINT}"
        yield _simulated("4.2", setting, density, bound, target, 2, draws)
    for density in (0.7, 0.75, 0.8, 0.85, 0.875, 0.9):
        bound = ("at most", sparse_matching.degree_bound(np.array([10] * 50), density, 50))
        setting, target = "c2 = c0 = 50, d = 10, random", sparse_matching.random_rows(50, 50, 10)
        yield _simulated("4.2", setting, density, bound, target, 50, few)


def _width_rows(draws: int, few: int) -> Iterator[dict[str, Any]]:
    """Theorem 4.3, with the printed k and the derived one."""
    for outputs, inputs, target_density, density, failure in SETTINGS:
        numbers = (outputs, inputs, target_density, density)
        factors = {
            "4.3, k in print": sparse_matching.width_factor_in_print(*numbers, failure),
            "4.3, k derived": sparse_matching.width_factor(*numbers, failure),
        }
        for theorem, factor in factors.items():
            k = math.ceil(round(factor, 9))
            setting = f"c2 = {outputs}, c0 = {inputs}, q = {target_density}, k = {k}"
            bound, target = ("at least", 1 - failure), _bernoulli_rows(*numbers[:3])
            drawn = 0 if k * outputs > MOST_ROWS else draws if outputs == 1 else few
            sizes = k * outputs, drawn, sparse_matching.partition_probability(k, *numbers)
            yield _simulated(theorem, setting, density, bound, target, *sizes)


def _disjoint_rows(draws: int) -> Iterator[dict[str, Any]]:
    """The text's k for disjoint supports, and that of Theorem 4.2's reasoning."""
    outputs, degree, density, failure = SPECIAL
    fits, each = density**degree, (1 - failure) ** (1 / outputs)  # p^d and (1 - δ)^{1/c2}
    target = _always(sparse_matching.disjoint_rows(outputs, 50, degree))
    factors = {
        "Fig. 1 (e), k in print": each / (outputs * fits),
        "Fig. 1 (e), k derived": math.log(1 - each) / (outputs * math.log(1 - fits)),
    }
    for statement, factor in factors.items():
        k = math.ceil(factor)
        setting = f"c2 = {outputs}, d = {degree}, {DISJOINT}, k = {k}"
        bound = ("at least", 1 - failure)
        yield _simulated(statement, setting, density, bound, target, outputs * k, draws)


def _always(target: np.ndarray) -> sparse_matching.MakeTarget:
    return lambda _: target


def _bernoulli_rows(outputs: int, inputs: int, density: float) -> sparse_matching.MakeTarget:
    return lambda generator: generator.random((outputs, inputs)) < density


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per setting, and whether the statement holds."""
    lines = []
    for row in _complete(rows).to_dict("records"):
        statement = str(row["theorem"]).replace("in print", "as printed")
        line = {
            "statement": statement if statement.startswith("Fig.") else f"Theorem {statement}",
            "setting": row["setting"],
            "feature density p": row["feature_density"],
            "found": _matched(row),
            PARTITION: row["partition_probability"],
            "stated": f"{row['bound_kind']} {row['bound']:.4f}",
            "holds": row["holds"],
        }
        lines.append(line)
    return pd.DataFrame(lines)


def _complete(rows: pd.DataFrame) -> pd.DataFrame:
    """Add whether each statement holds; values of a missing task are NaN."""
    names = ["draws", "matched", "share_low", "share_high", "partition_probability", "exact"]
    rows = rows.reindex(columns=[*dict.fromkeys([*rows.columns, *names])])
    low, high = (rows[name].fillna(rows["exact"]) for name in ("share_low", "share_high"))
    settings = rows["setting"].str.replace(DISJOINT, SHOWN)
    lower = rows["theorem"].str.startswith("4.3")  # targets have fewer outputs than the features
    settings = settings.where(~lower, settings.str.replace("c2 = ", "c2(t) = "))
    rows = rows.assign(low=low, high=high, setting=settings)
    return rows.assign(holds=[_holds(row) for row in rows.to_dict("records")])


def _holds(row: dict[str, Any]) -> str:
    """Whether the whole interval, or the proof's partition (a lower bound), meets the bound."""
    low, high, bound = row["low"], row["high"], row["bound"]
    if row["partition_probability"] >= bound - ROUNDING:
        return "yes"
    if math.isnan(low):
        return ""
    if row["bound_kind"] == "at most":
        low, high, bound = -high, -low, -bound
    return "yes" if low >= bound - ROUNDING else "no" if high < bound else "undecided"


def _matched(row: Mapping[str, Any] | pd.Series) -> str:
    if not math.isnan(row["exact"]):
        return f"{row['exact']:.4f}, exact"
    if not row["draws"]:
        return "too many rows to draw"
    share = row["matched"] / row["draws"]
    return f"{share:.4f} [{row['low']:.4f}, {row['high']:.4f}] (n={row['draws']:.0f})"


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide Theorem 4.2's bound, whether it is attained, and both factors k."""
    rows = _complete(rows)
    bound = rows[rows["theorem"] == "4.2"]
    disjoint = bound[bound["setting"].str.contains(SHOWN)]
    decisions: list[Decision] = [_bound(bound)] if len(bound) else []
    if len(disjoint):
        first = disjoint.iloc[0]
        setting = f"{first['setting']}, p = {first['feature_density']:g}"
        attained = {"bound": first["bound"], "setting": setting, "matched": _matched(first)}
        below = (disjoint["high"] < disjoint["bound"]).all()
        decisions.append(("attained", "false as stated" if below else "undecided", attained))
    for theorem, failing in (("4.3", "false as stated"), ("Fig. 1 (e)", "needs a correction")):
        printed = rows[rows["theorem"] == f"{theorem}, k in print"]
        derived = rows[rows["theorem"] == f"{theorem}, k derived"]
        if len(printed):
            decisions.append((theorem, *_factor(printed, derived, failing)))
    return decisions


def _bound(bound: pd.DataFrame) -> Decision:
    """Confirmed by the enumeration if no interval contradicts it."""
    verdict = "confirmed" if bound["exact"].notna().any() else "undecided"
    failed = (bound["holds"] == "no").any()
    return "bound", "false as stated" if failed else verdict, {"counts": _counts(bound)}


def _counts(rows: pd.DataFrame) -> str:
    """How many settings hold, fail and are undecided."""
    answers = rows.loc[rows["holds"] != "", "holds"].value_counts()
    named = [f"{words} {answers[answer]}" for answer, words in ANSWERS.items() if answer in answers]
    return f"{', '.join(named)} of {len(rows)} settings" if named else "was not drawn"


def _factor(
    printed: pd.DataFrame, derived: pd.DataFrame, failing: str
) -> tuple[str, dict[str, Any]]:
    """Wrong if a setting falls short of what is promised."""
    holds = set(printed["holds"])
    verdict = "confirmed" if holds == {"yes"} else failing if "no" in holds else "undecided"
    return verdict, {"counts": _counts(printed), "derived": _counts(derived)}


FORMATS = {"feature density p": ".4g", PARTITION: ".4f"}
SIZE = {"outputs": ENUMERATED, "inputs": ENUMERATED, "densities": DENSITIES}
ENUMERATION = sweep(sparse_matching.enumerate_targets, "enumeration", {}, SIZE)
TASKS = join(sweep(simulate, "all", {}, {"draws": DRAWS}), ENUMERATION)
NEAR = only("feature density p", 0.5, 0.7, 0.8, drop=[PARTITION])
PRINTED = only("statement", "Theorem 4.2", "Theorem 4.3, k as printed", "Fig. 1 (e), k as printed")


def excerpt(lines: pd.DataFrame) -> pd.DataFrame:
    """Settings where a printed statement fails, and the targets nearest to Theorem 4.2's bound."""
    shown = (lines["holds"] == "no") | lines["setting"].str.startswith("the nearest")
    return PRINTED(NEAR(lines[shown]))


PART = part(__file__, TASKS, summarize, decide=decide, formats=FORMATS, excerpt=excerpt)
