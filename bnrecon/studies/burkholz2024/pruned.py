"""How many of 1.5 n random features a trained layer needs: sparse and pruned sources."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.experiment import Experiment, Task, no_overrides
from bnrecon.reproduction.options import refuse_compared
from bnrecon.studies.burkholz2024 import pruned_caption, pruned_figure
from bnrecon.studies.burkholz2024.pruned_loss import LOSS, is_small, loss_of
from bnrecon.studies.burkholz2024.pruned_networks import rebuild
from bnrecon.studies.burkholz2024.pruned_settings import (
    ADDED,
    AT,
    FIRST,
    LABELS,
    NETWORK,
    OVERSAMPLING,
    SEEDS,
    SHARES,
    TARGETS,
    WEIGHTS,
)

__all__ = ["PART"]


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """A task for each target, seed and method, which computes all shares."""
    refuse_compared(options, ("target.activation", "features", "features.name"))
    return [
        Task(
            f"{'' if activation == FIRST else f'{activation}, '}{method}, seed {seed}",
            rebuild,
            {"method": method, "shares": _shares(scale, method), "seed": seed},
            (*target, *options),
            reads_target=True,
        )
        for activation, target in TARGETS[scale].items()
        for seed in SEEDS[scale]
        for method in LABELS
        if method != WEIGHTS or seed == 0  # nothing in it is random
    ]


def _shares(scale: str, method: str) -> list[float]:
    """Kept features over n; above n a refit is exact and needs no row."""
    above, below = SHARES[scale]
    shares = {"magnitude": (*above, AT, *below), WEIGHTS: below}.get(method, (AT, *below))
    return [round(OVERSAMPLING * share, 6) for share in shares]


def summary(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per method and share: layer errors, and for each target the loss over seeds."""
    rows = _name_targets(rows)
    targets = rows["activation"].unique()
    lines = []
    for method, label in LABELS.items():
        own = rows[rows["method"] == method]
        for share, group in own.groupby("share", sort=False):
            drawn = 1.0 if method == WEIGHTS else OVERSAMPLING  # c1 / n
            by_target = group.groupby("activation", sort=False)
            losses = {name: loss_of(of_target) for name, of_target in by_target}
            lines.append(
                {
                    "kept by": label,
                    "kept / n": share,
                    "kept / c1": float(str(share)) / drawn,
                    "median layer error": group["median_error"].mean(),
                    "largest layer error": group["largest_error"].max(),
                    **{f"loss, {name}": losses.get(name) for name in targets},
                    f"loss at most {LOSS}": _verdict(method, losses, len(targets)),
                    "images predicted otherwise": (
                        f"{group['predicted_otherwise'].sum():,} of {group['images'].sum():,}"
                    ),
                }
            )
    return pd.DataFrame(lines)


def _name_targets(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows that were stored first do not name their target and its activation."""
    given = rows["activation"] if "activation" in rows else pd.Series("", rows.index)
    network = rows["network"] if "network" in rows else pd.Series(None, rows.index, dtype=object)
    return rows.assign(
        activation=given.where(given.isin(ADDED), FIRST), network=network.fillna(NETWORK)
    )


def _verdict(method: str, losses: dict[str, Interval], targets: int) -> str:
    """One word where all targets are known and agree, else the targets behind each word."""
    by_word: dict[str, list[str]] = {}
    for name, loss in losses.items():
        by_word.setdefault(is_small(method, loss), []).append(name)
    if len(by_word) == 1 and len(losses) == targets:
        return next(iter(by_word))
    return "; ".join(
        f"{word}: {', '.join(by_word[word])}" for word in ("yes", "open", "no") if word in by_word
    )


def caption(rows: pd.DataFrame) -> str:
    """What was done, what is known, and how many features are needed."""
    return pruned_caption.caption(_name_targets(rows))


def draw(rows: pd.DataFrame) -> Figure:
    """Losses of the targets, and layer errors, against kept features over n."""
    return pruned_figure.draw(_name_targets(rows))


PART = Experiment(
    "Sect. 1.1, lottery tickets",
    "How many of 1.5 n random features a trained network needs",
    tasks,
    summary,
    caption,
    draw,
    options=no_overrides,
    formats={
        "kept / n": ".3f",
        "kept / c1": ".3f",
        "median layer error": ".1e",
        "largest layer error": ".1e",
    },
)
