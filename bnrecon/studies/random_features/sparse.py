"""Sect. 4, conclusion: sparse ID cond features compared with random masks."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.intervals import decide, decide_within, paired_difference_by
from bnrecon.reproduction.trainings import compare_settings, training_tasks
from bnrecon.studies.random_features.one_support import compare_steps

__all__ = ["PART", "decide_equal", "decide_loss"]

DENSITIES = (0.2, 0.5)  # 0.2: "often feasible without significant performance loss"
OPTIONS = {
    "smoke": ("data=digits", "scale=smoke", "target.groups=[1,1]", "seeds=[0]"),
    "laptop": ("data=cifar10", "scale=laptop", "target.width=16"),  # 30 epochs
    "paper": ("data=cifar10", "scale=paper", "target.width=64"),
}
SEEDS = {"smoke": (0, 1), "laptop": (0, 1, 2), "paper": (0, 1, 2)}
STEPS = {"smoke": 5, "laptop": 20, "paper": 20}
ALL = "all weights"
MARGIN = 1.0  # points that count as no significant loss; the paper gives no number
USUAL_WIDTH = 64  # of the first layer of usual networks
ROUNDING = 1e-9  # float64, over so many steps


def masked(density: float) -> str:
    """What training behind random masks is called."""
    return f"weights under random masks, density {density}"


def scales(density: float) -> str:
    """What training the scales of sparse features is called."""
    return f"scales of sparse ID cond features, density {density}"


def shared(density: float) -> str:
    """What training the weights that sparse features select is called."""
    return f"weights that these features select, density {density}"


def settings(density: float) -> dict[str, tuple[str, ...]]:
    """Trainings on independent supports."""
    return {
        masked(density): ("target.features=none", f"target.density={density}"),
        scales(density): (*_features(density), "target.inner=scale"),
    }


def _features(density: float) -> tuple[str, str]:
    return "target.features=sparse_id_cond", f"target.oversampling={density}"


def common_options(scale: str) -> Sequence[str]:
    """The overrides that all trainings have in common."""
    return ("target=vgg18_normalization", *OPTIONS[scale])


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One support step by step; one task for each training and seed; one support to the end.

    Theorem 3.1 makes the last of them the training of scales itself, so that one seed is enough.
    """
    common, seeds = common_options(scale), SEEDS[scale]
    compared: dict[str, tuple[str, ...]] = {ALL: ("target.features=none",)}
    for density in DENSITIES:
        compared |= settings(density)
    selected = {shared(p): (*_features(p), "target.inner=mask") for p in DENSITIES}
    equal = [
        Task(
            f"one support, density {density}",
            compare_steps,
            {"density": density, "steps": STEPS[scale]},
            (*common, *_features(density), *options),
        )
        for density in DENSITIES
    ]
    return [
        *equal,
        *training_tasks(compared, common, seeds, options),
        *training_tasks(selected, common, seeds[:1], options),
    ]


def _trained(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of trainings, without those of ``compare_steps``."""
    return rows[rows["setting"] != ""].dropna(subset="setting") if "setting" in rows else rows[:0]


def _differences(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.dropna(subset="difference") if "difference" in rows else rows[:0]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line for each training, and one for each density on one support."""
    baselines: dict[str, str] = {}
    for density in DENSITIES:
        baselines |= {masked(density): ALL, scales(density): masked(density)}
        baselines |= {shared(density): scales(density)}
    trained, differences = _trained(rows), _differences(rows)
    table = pd.DataFrame()
    if len(trained):
        table = compare_settings(trained, "trained", {}, baselines)
    steps = [
        {
            "trained": f"the last two, density {row['density']}, {row['steps']:.0f} steps",
            "largest relative difference of logits": f"{row['difference']:.1e}",
        }
        for row in differences.to_dict("records")
    ]
    return pd.concat([table.astype(object), pd.DataFrame(steps)]).fillna("")


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Theorem 3.1 on one support, the conclusion's equal performance, and what sparsity costs."""
    found = [_exact(_differences(rows))]
    trained = _trained(rows)
    for density in DENSITIES if len(trained) else ():
        difference = paired_difference_by(trained, "setting", scales(density), masked(density))
        loss = paired_difference_by(trained, "setting", ALL, masked(density))
        width = int(trained["width"].iloc[0])
        if difference is not None:
            found.append(_equal(density, difference, width))
        if loss is not None:
            if density == DENSITIES[0]:
                found.append(_in_practice(loss, width))
            found.append(_loss(density, loss, width, int(trained["epochs"].iloc[0])))
    return found


def _equal(density: float, difference: Interval, width: int) -> Claim:
    return Claim(
        f"Sect. 4, conclusion, density {density}, width {width}",
        "'If a task is solvable by training an iid randomly masked neural network with density "
        "p [...], random ID cond features can achieve the same generalization performance.'",
        decide_equal(difference),
        f"scales minus masked weights {difference} points, on independent supports; confirmed is "
        f"an interval within ±{MARGIN:g}, a margin of ours.",
    )


def _in_practice(loss: Interval, width: int) -> Claim:
    """Of usual networks; narrow ones cannot refute it."""
    narrow = width < USUAL_WIDTH
    return Claim(
        "Sect. 4, conclusion",
        "'In practice, p ≈ 0.2 is often feasible without significant performance loss.'",
        "open" if narrow else decide_loss(loss),
        f"said of usual networks, and these have width {width}, with fewer weights to spare than "
        f"the usual {USUAL_WIDTH}."
        if narrow
        else f"all weights minus masked weights {loss} points.",
    )


def _loss(density: float, loss: Interval, width: int, epochs: int) -> Claim:
    return Claim(
        f"Beyond Sect. 4: width {width}, {epochs} epochs",
        f"A density of {density} costs less than {MARGIN:g} point of test accuracy.",
        decide_loss(loss),
        f"all weights minus masked weights {loss} points. The margin is ours; contradicted is an "
        "interval above it.",
    )


def _exact(differences: pd.DataFrame) -> Claim:
    largest = differences["difference"].max() if len(differences) else None
    return Claim(
        "Theorem 3.1, for masks",
        "On one support, training scales and training weights are the same.",
        "open" if largest is None else "confirmed" if largest < ROUNDING else "contradicted",
        "not computed yet."
        if largest is None
        else f"logits differ by {largest:.1e} of the largest one at most, over "
        f"{differences['steps'].iloc[0]:.0f} steps of SGD in float64, with momentum and weight "
        "decay. Whole trainings in float32 differ by what rounding becomes in them.",
    )


def decide_equal(difference: Interval) -> str:
    """Is an interval within the margin, outside of it, or neither? Two seeds are enough."""
    return decide_within([difference], MARGIN, least=2)


def decide_loss(loss: Interval) -> str:
    """Is a loss surely below the margin, surely above it, or neither? Two seeds are enough."""
    return decide([MARGIN - loss], least=2)


PART = Experiment(
    where="Sect. 4, conclusion",
    title="Sparse ID cond features compared with random masks",
    caption=(
        "One architecture, trained in several parameterizations at two densities p. "
        "Random masks keep each weight with probability p; of the n ID cond features of a layer, "
        "p n are drawn at random, independently of the masks, so that both have different "
        "supports. Weights that these features select: masks of exactly the features' weights, "
        "with the same start, which makes it Theorem 3.1: the same training, run once. "
        "Training is otherwise the same, and the initial weights have the same variance in all. "
        "Training accuracies are means over the last epoch, with augmentation. "
        "± is the half-width of the 95% Student-t interval over seeds, three at laptop scale, "
        "fixed before; the intervals are not corrected for their number."
    ),
    tasks=tasks,
    summary=summarize,
    options=common_options,
    claims=claims,
)
