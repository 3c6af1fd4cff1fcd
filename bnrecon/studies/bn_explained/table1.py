"""Table 1 and Appendix D: BatchNorm with and without learned scales and shifts."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pandas as pd

from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.intervals import decide_within, paired_difference_by, with_values
from bnrecon.reproduction.parts import Decisions, part, read_reported, sweep
from bnrecon.studies.bn_explained import trained_networks

REPORTED = read_reported(__package__)["table1"]
TARGETS = {"RESNET": "dropout_resnet", "CNN": "dropout_cnn"}
# Percentage points: our reading of "very little impact". Two accuracies of 85% on 10,000 test
# images differ by less than 1.96 sqrt(2 * 0.85 * 0.15 / 10^4) = 0.0099 by chance (95%).
NEGLIGIBLE = 1.0
TESTED = {"imagenette": 3_925, "cifar10": 10_000, "cifar100": 10_000, "svhn": 26_032}  # images
DATA = {
    "smoke": ("digits",),
    "laptop": ("cifar10", "cifar100"),
    "paper": ("imagenette", "cifar10", "cifar100", "svhn"),
}
WIDTHS = {"smoke": (4, 6), "laptop": (8, 12), "paper": (64, 96)}  # of RESNET and CNN
LENGTHS = {
    "smoke": ("scale=smoke",),
    "laptop": ("data.train_limit=10000", "train.epochs=10", "train.warmup_epochs=1"),
    "paper": ("train.epochs=100", "train.warmup_epochs=5"),
}
OPTIONS = {scale: (*length, *trained_networks.NOT_AUGMENTED) for scale, length in LENGTHS.items()}
SEEDS = {"smoke": 2, "laptop": 3, "paper": 5}


def _measured(rows: pd.DataFrame, network: str, data: str) -> pd.DataFrame:
    return rows[(rows["network"] == network) & (rows["data"] == data)]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per network and data set: the paper's, then others that were run."""
    lines = []
    more = [name for name in rows["data"].unique() if name not in REPORTED["RESNET"]]
    for network, data in itertools.product(TARGETS, [*REPORTED["RESNET"], *more]):
        cell = _measured(rows, network, data)
        printed: dict[str, float] = REPORTED[network].get(data, {})
        line: dict[str, Any] = {"network": network, "data": data}
        for affine, word in ((False, "fixed"), (True, "learned")):
            line[f"{word}, reported"] = f"{printed[word]:g}" if printed else ""
            accuracies = list(cell.loc[cell["affine"] == affine, "accuracy"])
            line[word] = mean_interval(accuracies) if accuracies else "not measured"
        difference = paired_difference_by(cell, "affine", False, True)
        gap = printed["fixed"] - printed["learned"] if printed else None
        line["fixed - learned, reported"] = "" if gap is None else f"{gap:+.1f}"
        line["fixed - learned"] = trained_networks.describe(difference)
        lines.append(line)
    for network, printed in REPORTED["imagenet"].items():
        gap = printed["fixed"] - printed["learned"]
        line = {"network": network, "data": "imagenet", "fixed - learned, reported": f"{gap:+.2f}"}
        line |= {f"{word}, reported": f"{printed[word]:.2f}" for word in ("fixed", "learned")}
        lines.append(line | dict.fromkeys(("fixed", "learned", "fixed - learned"), "not measured"))
    return pd.DataFrame(lines)


def reported(row: Mapping[str, Any]) -> dict[str, Any]:
    """The printed accuracy of a trained network, if any."""
    printed = REPORTED[row["network"]].get(row["data"], {})
    return {"reported_accuracy": printed.get("learned" if row["affine"] else "fixed")}


def decide(rows: pd.DataFrame) -> Decisions:
    """Do learned scales and shifts have very little impact, in print and, within a point, here?"""
    cells = [
        cell | {"images": TESTED[data]}
        for network in TARGETS
        for data, cell in REPORTED[network].items()
    ]
    imagenet = [cell | {"images": 50_000} for cell in REPORTED["imagenet"].values()]
    printed = {"cells": cells, "imagenet": imagenet}
    widths = rows.drop_duplicates("network").set_index("network")["width"]
    listed = dict(zip(TARGETS, WIDTHS["paper"], strict=True))
    sizes = (f"{n} of width {w:g} (Appendix D: {listed[str(n)]})" for n, w in widths.items())
    numbers: dict[str, Any] = {"sizes": ", ".join(sizes), "negligible": NEGLIGIBLE}
    numbers["training"] = trained_networks.describe_training(rows)
    for name, values in printed.items():
        named = pd.DataFrame(values)
        fixed, learned, images = (named[word] for word in ("fixed", "learned", "images"))
        gaps, shares = fixed - learned, (fixed + learned) / 200
        # Two accuracies on so many independent images differ by more than this in 5% of cases.
        chance = 196 * (2 * shares * (1 - shares) / images) ** 0.5
        large = (gaps.abs() - NEGLIGIBLE > chance).sum()
        numbers[name] = {"min": gaps.min(), "max": gaps.max(), "n": len(gaps), "large": large}
    differences = {}
    for data, network in itertools.product(rows["data"].unique(), TARGETS):
        cell = _measured(rows, network, data)
        differences[f"{network} on {data}"] = paired_difference_by(cell, "affine", False, True)
    numbers |= {"seconds": rows["seconds"].sum(), "comparisons": len(differences)}
    means = [d.mean for d in with_values(differences.values())] or [float("nan")]
    halves = [d.half_width or 0.0 for d in with_values(differences.values())]
    numbers |= {"least": min(means), "most": max(means), "widest": max(halves, default=0.0)}
    return {
        "as printed": not any(numbers[name]["large"] for name in printed),
        "trained": decide_within(differences.values(), NEGLIGIBLE),
    }, numbers


def excerpt(table: pd.DataFrame) -> pd.DataFrame:
    """The rows trained here, without the difference of two printed columns."""
    return table[table["fixed"] != "not measured"].drop(columns="fixed - learned, reported")


NETWORKS = {
    scale: list(zip(TARGETS, TARGETS.values(), widths, strict=True))
    for scale, widths in WIDTHS.items()
}
VARIED = ("target.width={_width}", "target.affine={_affine}", "train.seed={seed}")
TASKS = sweep(
    trained_networks.train_and_count,
    "{network} on {data}, {_scales} scales, seed {seed}",
    {
        "seed": SEEDS,
        "data": DATA,
        ("network", "_target", "_width"): NETWORKS,
        ("affine", "_affine", "_scales"): ((True, "true", "learned"), (False, "false", "fixed")),
    },
    runs={
        scale: ("data={data}", "target={_target}", *common, *VARIED)
        for scale, common in OPTIONS.items()
    },
    compared={"data", "target", "target.affine", "train.seed"},
)
PART = part(
    __file__, TASKS, summarize, decide=decide, options=OPTIONS, reported=reported, excerpt=excerpt
)
