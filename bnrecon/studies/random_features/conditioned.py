"""Table 1: training with weights multiplied by fixed, ill-conditioned factors."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.reproduction.trainings import compare_settings, training_tasks
from bnrecon.studies.random_features import conditioned_claims, conditioned_steps
from bnrecon.studies.random_features.conditioned_claims import (
    BASELINE,
    CONDITIONS,
    DECIDING,
    LONG_BASELINE,
    POOLED,
    REPORTED,
    log_uniform,
    pooled,
    quantiles_apart,
)

__all__ = ["PART"]

OPTIONS = {
    "smoke": ("data=digits", "target=vgg_small", "scale=smoke", "seeds=[0]"),
    "laptop": ("data=cifar10", "target=vgg18", "scale=laptop", "target.width=16"),
    "paper": ("data=cifar10", "target=resnet18", "scale=paper", "target.width=64"),
}
# The rows of the spectrum in print; at laptop scale they were trained before the others.
PRINTED = {"smoke": (), "laptop": ("train.epochs=6",), "paper": ()}
PRINTED_SEEDS = {"smoke": (0, 1), "laptop": (0, 1, 2, 3, 4), "paper": (0, 1, 2)}
SEEDS = {"smoke": (0, 1), "laptop": (0, 1, 2), "paper": (0, 1, 2)}


def common_options(scale: str) -> Sequence[str]:
    """The overrides that all trainings have in common."""
    return OPTIONS[scale]


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task for each spectrum and seed, of initial weights, batches and factors."""
    printed = {condition: (f"target.condition={condition}",) for condition in REPORTED}
    longer: dict[str, tuple[str, ...]] = {LONG_BASELINE: ()}
    for condition in CONDITIONS:
        spectrum = (f"target.condition={condition}", "target.spectrum=log_uniform")
        longer[log_uniform(condition)] = spectrum
    longer |= conditioned_steps.settings(longer[conditioned_steps.HARDEST])
    common = OPTIONS[scale]
    return [
        *training_tasks(printed, (*common, *PRINTED[scale]), PRINTED_SEEDS[scale], options),
        *training_tasks(longer, common, SEEDS[scale], options),
    ]


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line for each spectrum, beside the paper's accuracies on ImageNet."""
    reported = {
        condition: {
            "reported, ImageNet, training": f"{accuracies['training']:g}",
            "reported, ImageNet, test": f"{accuracies['test']:g}",
        }
        for condition, accuracies in REPORTED.items()
    }
    baselines = {POOLED: BASELINE} | {log_uniform(c): LONG_BASELINE for c in CONDITIONS}
    baselines |= conditioned_steps.BASELINES
    is_printed = rows["setting"].isin(REPORTED)
    printed = rows[is_printed & rows["seed"].isin(DECIDING)]
    ordered = pd.concat([printed, pooled(printed), rows[~is_printed]])
    return compare_settings(ordered, "condition number", reported, baselines)


def claims(rows: pd.DataFrame) -> list[Claim]:
    """What the accuracies say, and whether the steps' length is why."""
    *found, order = conditioned_claims.claims(rows)
    return [*found, *conditioned_steps.claims(rows), order]


def caption(rows: pd.DataFrame) -> str:
    """Says how little the factors of the larger condition numbers differ."""
    conditions = sorted(float(name) for name in set(rows["setting"]) & set(REPORTED) - {BASELINE})
    differ = ""
    if len(conditions) > 1:
        differ = (
            f"From {conditions[0]:,.0f} on the law hardly changes: sorted by size, the factors of "
            f"these rows differ by {quantiles_apart(conditions):.1g} at most (root mean square). "
            "They are replicates, are pooled by seed, and have no order. "
        )
    at_other_rates = ""
    if set(rows["setting"]) & set(conditioned_steps.BASELINES):
        at_other_rates = (
            "The last rows are trained at other learning rates, so that networks with log-uniform "
            "factors of condition number 1,000 and networks without factors can be compared at "
            "steps that are equally long, or go equally far along the gradient. "
        )
    return (
        "The layers' weights are s ∘ w with fixed factors s in random order, of root mean square "
        "1: quantiles of Theorem 2.2's law with the given condition number, where the paper draws "
        "from it, or log-uniform. "
        "The reported accuracies are those of ResNet-50 on ImageNet. "
        "That experiment is experiment=imagenet_condition; it was not run here. "
        f"{differ}"
        "Log-uniform factors have logarithms spread evenly, so that the condition number changes "
        "all of them. "
        "Conditioning is not all that differs. The initial weights s ∘ w have the same variance "
        "and heavier tails. The step along the gradient is the same on average, "
        "its length is sqrt(mean of s⁴) times as long, 1.4 for Theorem 2.2's law and about "
        "sqrt(ln κ) for log-uniform factors: 1.53, 2.15 and 2.63 for 10, 100 and 1,000. At one "
        f"learning rate an effect is that of both. {at_other_rates}"
        "Seeds were fixed before: three at laptop scale. Two more were added later to "
        "Theorem 2.2's rows; they decide nothing and are not in the table. "
        "Training accuracies are means over the last epoch, with augmentation. "
        "± is the half-width of the 95% Student-t interval over seeds, not corrected for the "
        "number of comparisons."
    )


PART = Experiment(
    where="Table 1",
    title="Training with ill-conditioned features",
    caption=caption,
    tasks=tasks,
    summary=summarize,
    options=common_options,
    claims=claims,
)
