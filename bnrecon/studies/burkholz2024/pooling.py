"""Which convolutions precede each pooling layer (Burkholz 2024, Sect. 3.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from bnrecon.config import composition
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction import intervals
from bnrecon.reproduction.parts import Decisions, read_text, refuse_compared
from bnrecon.studies.burkholz2024.run_tables.row import Cell, Row
from bnrecon.studies.burkholz2024.run_tables.run_table import RunTable

WIDTH, SEED, GROUPS, EPOCHS = "target.width", "train.seed", "target.groups", "train.epochs"
COMMON = ("target=vgg18", "data=cifar10", "features=he_normal", "solver=auto")
AS_TABLE_1 = ("evaluate=collapsed", "seeds=[0]")
TEXT = read_text(__file__)
SUGGESTED = "0"  # the training seed whose result led to the others
ACCURACY, SAME = "accuracy: target", ["target width", "epochs", "training seed"]

# The targets that are trained with both plans: width, scale and seeds of the training, and more
# overrides of the runs.
TARGETS: Mapping[str, Sequence[tuple[str, str, Sequence[str], Sequence[str]]]] = {
    "smoke": (("4", "smoke", ("0",), ()),),
    "laptop": (
        ("32", "laptop", ("0", "1", "2"), ()),
        ("64", "laptop", ("0",), AS_TABLE_1),
        ("64", "paper", ("0",), AS_TABLE_1),
    ),
    "paper": (("64", "paper", ("0",), ()),),
}
PLANS: Mapping[str, tuple[str, ...]] = {"2, 3, 4, 4, 4": (), "4, 4, 4, 5": (f"{GROUPS}=[4,4,4,5]",)}


def _rows(scale: str, options: Sequence[str]) -> list[Row]:
    """Both plans side by side, for the widths and training seeds of the scale."""
    refuse_compared(options, {GROUPS, WIDTH, SEED, EPOCHS})
    rows = []
    for width, trained, seeds, overrides in TARGETS[scale]:
        common = (*COMMON, f"scale={trained}", f"{WIDTH}={width}")
        epochs = composition.compose((*common, *options)).train.epochs
        labels = {"target width": width, "epochs": str(epochs)}
        rows += [
            Row(
                {"groups": plan, **labels, "training seed": seed},
                (*common, f"{SEED}={seed}", *overrides, *groups, *options),
            )
            for seed in seeds
            for plan, groups in PLANS.items()
        ]
    return rows


def decide(cells: Sequence[Cell]) -> Decisions:
    """Whether one plan gives more accurate targets, by the seeds added later."""
    listed, added = [], []
    for setting in dict.fromkeys(map(_setting, cells)):
        by_seed = _gains([cell for cell in cells if _setting(cell) == setting])
        values, later = list(by_seed.values()), [by_seed[s] for s in by_seed if s != SUGGESTED]
        mean = f", mean {mean_interval(values)}" if len(values) > 1 else ""
        words = f"{setting}: {', '.join(f'{gain:.2f}' for gain in values)}{mean}"
        listed += [words] if values else []
        added += [mean_interval(later)] if later else []
    if not listed:
        return []
    numbers = {"gains": "; ".join(listed), "decided_by": ""}
    if added:
        alone = ", ".join(map(str, added))
        numbers["decided_by"] = " " + TEXT.sentence("decided by", seed=SUGGESTED, alone=alone)
    return {"Beyond Sect. 3.2: the plan": intervals.decide(added)}, numbers


def _setting(cell: Cell) -> str:
    labels = cell.row.labels
    return f"width {labels['target width']}, {labels['epochs']} epochs"


def _gains(cells: Sequence[Cell]) -> dict[str, float]:
    """The second plan's accuracy minus the first's, by training seed."""
    one, other = (
        {
            cell.row.labels["training seed"]: cell.result.target.accuracy
            for cell in cells
            if cell.row.labels["groups"] == plan and cell.result is not None
        }
        for plan in PLANS
    )
    return {seed: other[seed] - one[seed] for seed in one if seed in other}


def excerpt(lines: pd.DataFrame) -> pd.DataFrame:
    """Both plans' accuracies side by side, if any."""
    needed = lines.reindex(columns=["groups", *SAME, ACCURACY])
    accuracies = needed.pivot_table(ACCURACY, SAME, "groups", "first", sort=False)
    return accuracies.rename(columns="accuracy, {}".format).reset_index()


PART = RunTable(TEXT, _rows, None, decide, excerpt)
