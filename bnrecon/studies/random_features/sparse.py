"""Sect. 4, conclusion: sparse ID cond features compared with random masks.

Theorem 3.1 for sparse features: on one support, scales take the steps of masked weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F

from bnrecon.config import composition
from bnrecon.data import load
from bnrecon.data.batches import EpochPosition
from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction import intervals
from bnrecon.reproduction.intervals import paired_difference_by
from bnrecon.reproduction.parts import Decision, Decisions, Task, only, part, sweep
from bnrecon.reproduction.trainings import training_tasks
from bnrecon.studies.random_features.averages import ALIKE, compare_settings
from bnrecon.targets.building import build_target

DENSITIES = (0.2, 0.5)  # 0.2: "often feasible without significant performance loss"
TARGET = "target=vgg18_normalization"
OPTIONS = {
    "smoke": (TARGET, "data=digits", "scale=smoke", "target.groups=[1,1]", "seeds=[0]"),
    "laptop": (TARGET, "data=cifar10", "scale=laptop", "target.width=16"),  # 30 epochs
    "paper": (TARGET, "data=cifar10", "scale=paper", "target.width=64"),
}
SEEDS = {"smoke": (0, 1), "laptop": (0, 1, 2), "paper": (0, 1, 2)}
STEPS = {"smoke": 5, "laptop": 20, "paper": 20}
ALL = "all weights"
MASKED = {p: f"weights under random masks, density {p}" for p in DENSITIES}
SCALES = {p: f"scales of sparse ID cond features, density {p}" for p in DENSITIES}
SELECTED = {p: f"weights that these features select, density {p}" for p in DENSITIES}
MARGIN = 1.0  # points that count as no significant loss; the paper gives no number
USUAL_WIDTH = 64  # of the first layer of usual networks
ROUNDING = 1e-9  # of float64 over ``STEPS`` steps


def features(density: float | str) -> tuple[str, str]:
    """The options of sparse features."""
    return "target.features=sparse_id_cond", f"target.oversampling={density}"


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One support step by step; one task per training and seed; one support to the end.

    By Theorem 3.1, the last is the training of scales itself, so one seed is enough.
    """
    common, seeds = OPTIONS[scale], SEEDS[scale]
    compared: dict[str, tuple[str, ...]] = {ALL: ("target.features=none",)}
    for density in DENSITIES:
        compared[MASKED[density]] = ("target.features=none", f"target.density={density}")
        compared[SCALES[density]] = (*features(density), "target.inner=scale")
    selected = {SELECTED[p]: (*features(p), "target.inner=mask") for p in DENSITIES}
    return [
        *ONE_SUPPORT(scale, options),
        *training_tasks(compared, common, seeds, options),
        *training_tasks(selected, common, seeds[:1], options),
    ]


def compare_steps(density: float, steps: int, options: Sequence[str]) -> pd.DataFrame:
    """Train scales and weights on the same batches in float64, and compare their logits.

    The scales are those of sparse ID cond features, c1 / n = ``density``, and the weights those
    that these features select. SGD has the peak rate and the run's momentum and weight decay;
    ``options`` do not name ``target.inner``. The single row's ``difference`` is the largest of all
    steps, relative to the largest logit.
    """
    configs = [composition.compose([*options, f"target.inner={one}"]) for one in ("scale", "mask")]
    config = configs[0]
    data = load(config.data)
    networks = [build_target(one.target_request, data).double().train() for one in configs]
    train = config.target_request.train
    rates: dict[str, Any] = {"lr": train.lr, "momentum": train.momentum}
    rates["weight_decay"] = train.weight_decay
    optimizers = [torch.optim.SGD(network.parameters(), **rates) for network in networks]
    largest, position = 0.0, EpochPosition(train.batch_size, train.seed, 0)
    batches = data.train_batches(position, torch.device("cpu"), torch.float64)
    for x, y in itertools.islice(batches, steps):
        outputs = []
        for network, optimizer in zip(networks, optimizers, strict=True):
            optimizer.zero_grad()
            logits = network(x)
            F.cross_entropy(logits, y).backward()
            optimizer.step()
            outputs.append(logits.detach())
        scales, weights = outputs
        largest = max(largest, float((scales - weights).abs().max() / weights.abs().max()))
    return pd.DataFrame([{"density": density, "steps": steps, "difference": largest}])


def _trained(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of trainings, without those of ``compare_steps``."""
    return rows[rows["setting"] != ""].dropna(subset="setting") if "setting" in rows else rows[:0]


def _differences(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.dropna(subset="difference") if "difference" in rows else rows[:0]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per training, and one per density on one support."""
    baselines: dict[str, str] = {}
    for density in DENSITIES:
        baselines |= {MASKED[density]: ALL, SCALES[density]: MASKED[density]}
        baselines |= {SELECTED[density]: SCALES[density]}
    trained, lines = _trained(rows), list[dict[Hashable, Any]]()
    if len(trained):
        lines = compare_settings(trained, "trained", {}, baselines).to_dict("records")
    for row in _differences(rows).to_dict("records"):
        named = f"scales and the weights they select, {row['density']}, {row['steps']:.0f} steps"
        difference = f"{row['difference']:.1e}"
        lines.append({"trained": named, "largest relative difference of logits": difference})
    return pd.DataFrame(lines, dtype=object).fillna("")


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide Theorem 3.1 on one support, the conclusion's equal performance, sparsity's cost."""
    decisions: list[Decision] = []
    trained, alike = _trained(rows), _differences(rows)
    if len(alike):
        largest, steps = alike["difference"].max(), alike["steps"].iloc[0]
        numbers = {"largest": largest, "steps": steps}
        exact = bool(largest < ROUNDING)
        decisions.append(("exact", exact, numbers))
        if (illustrated := _illustrate(trained)) is not None:
            decisions.append(("equal", exact, illustrated))
    for density in DENSITIES if len(trained) else ():
        loss = paired_difference_by(trained, "setting", ALL, MASKED[density])
        width, epochs = (int(trained[name].iloc[0]) for name in ("width", "epochs"))
        numbers = {"loss": loss, "margin": MARGIN, "usual": USUAL_WIDTH}
        numbers |= {"density": density, "width": width, "epochs": epochs}
        if loss is not None:
            narrow = width < USUAL_WIDTH  # cannot refute statements on usual networks
            claim = ("narrow", "undecided") if narrow else ("in practice", decide_loss(loss))
            decisions += [(*claim, numbers)] if density == DENSITIES[0] else []
            decisions.append(("loss", decide_loss(loss), numbers))
    return decisions


def _illustrate(trained: pd.DataFrame) -> dict[str, Any] | None:
    """By density, scales minus masked weights; on one support, single trainings' differences."""
    if not len(trained):
        return None
    other, same = (
        {p: paired_difference_by(trained, "setting", SCALES[p], named[p]) for p in DENSITIES}
        for named in (MASKED, SELECTED)
    )
    computed = {p: one for p, one in other.items() if one is not None}
    if not computed:
        return None
    apart = [f"{abs(one.mean):.2f}" for one in same.values() if one is not None]
    numbers = {"width": int(trained["width"].iloc[0]), "apart": " and ".join(apart) or "not run"}
    return numbers | {"points": ", ".join(f"{one} at p = {p:g}" for p, one in computed.items())}


def decide_loss(loss: Interval) -> str:
    """Is a loss surely below the margin, surely above it, or neither? Two seeds are enough."""
    return intervals.decide([MARGIN - loss], least=2)


ONE_SUPPORT = sweep(
    compare_steps,
    "one support, density {density}",
    {"density": DENSITIES},
    {"steps": STEPS},
    {scale: (*common, *features("{density}")) for scale, common in OPTIONS.items()},
)
DROPPED = [*ALIKE, "compared with", "training accuracy", "largest relative difference of logits"]
EXCERPT = only("trained", ALL, *MASKED.values(), *SCALES.values(), drop=DROPPED)
PART = part(__file__, tasks, summarize, decide=decide, options=OPTIONS, excerpt=EXCERPT)
