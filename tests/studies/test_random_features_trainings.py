"""Parts that train networks: comparisons, shares and verdicts from handmade rows."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from bnrecon.config.composition import compose
from bnrecon.features.shapes import LayerShape
from bnrecon.features.spectrum import log_uniform_quantile
from bnrecon.reporting import figures as drawing
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.studies import registry
from bnrecon.studies.burkholz2024 import scratch
from bnrecon.studies.random_features import conditioned, scales, sparse
from bnrecon.studies.random_features.averages import compare_settings
from bnrecon.studies.random_features.scales import (
    MATCHED,
    ONES,
    SLOWED,
    WEIGHTS,
    step_share,
)
from bnrecon.targets.collapsed_pair import CollapsedPair

STUDY = registry.find("random_features")


def trained(accuracies, epochs=30):
    """Rows of trainings: test accuracies by setting, one per seed."""
    return pd.DataFrame(
        [
            {"setting": setting, "seed": seed, "width": 16, "epochs": epochs, "accuracy": accuracy}
            | {"training_accuracy": accuracy - 1, "images": 10_000, "seconds": 500.0}
            for setting, values in accuracies.items()
            for seed, accuracy in enumerate(values)
        ]
    )


SIZE = "not at the paper's size"
GAP = {ONES: [60.0, 61, 62], MATCHED: [74.0, 75.5, 75.9], WEIGHTS: [77.0, 78, 79]}


def test_share_of_the_step_is_a_mean_of_ratios_over_seeds():
    rows = trained(GAP | {SLOWED: [60.2, 61, 61.9]})
    expected = mean_interval([100 * 14 / 17, 100 * 14.5 / 17, 100 * 13.9 / 17])
    share = step_share(rows)
    assert (share.mean, share.half_width) == pytest.approx((expected.mean, expected.half_width))
    claims = scales.PART.claims(rows)
    assert [claim.verdict for claim in claims] == [SIZE, *["confirmed"] * 3]
    assert f"{expected.mean:.0f} ± {expected.half_width:.0f}" in claims[2].evidence


@pytest.mark.parametrize(
    ("matched", "verdicts"),
    [
        ([61.0, 62, 63], ["confirmed", "contradicted", "confirmed"]),  # the step explains little
        ([60.0, 78, 70], ["confirmed", "undecided", "undecided"]),
        ([78.0, 79.1, 80], ["confirmed", "confirmed", "contradicted"]),
    ],
)
def test_step_verdicts_follow_the_rows(matched, verdicts):
    rows = trained(GAP | {MATCHED: matched})
    assert [claim.verdict for claim in scales.PART.claims(rows)[1:]] == verdicts


@pytest.mark.parametrize(("epochs", "verdict"), [(30, SIZE), (299, SIZE), (300, "confirmed")])
def test_shorter_trainings_leave_the_printed_sentence_undecided(epochs, verdict):
    claim = scales.PART.claims(trained(GAP, epochs))[0]
    assert claim.verdict == verdict
    assert "cannot compete" in claim.statement


def test_one_seed_decides_nothing():
    rows = trained({name: [value[0]] for name, value in GAP.items()})
    assert {claim.verdict for claim in scales.PART.claims(rows)} == {SIZE, "undecided"}


def test_differences_are_paired_by_seed():
    rows = trained({"a": [1.0, 2, 4], "b": [2.0, 3.5, 5], "c": [0.0, 0]})
    table = compare_settings(rows, "trained", {}, {"b": "a", "c": "a", "d": "a"})
    differences = table["difference, paired by seed"].tolist()
    assert differences == ["", mean_interval([1, 1.5, 1]), mean_interval([-1, -2])]


def test_complete_replicates_are_pooled_by_seed():
    rows = trained({"1": [70.0, 71], "5413": [68.0, 69], "10123": [69.0, 68], "1541601": [67.0]})
    pooled = conditioned.pooled(rows)
    assert pooled[["seed", "accuracy"]].to_numpy().tolist() == [[0, 68]]
    assert conditioned.pooled(rows[rows["setting"] == "1"]).empty
    summary = conditioned.PART.summary(rows).set_index("condition number")
    assert summary.loc[conditioned.POOLED, "compared with"] == "1"


TABLE1 = {
    "1": [70.0, 71, 72],
    "5413": [68.0, 69, 70.3],
    "10123": [68.0, 69, 70],
    "1541601": [68.0, 69.1, 70],
}


def test_table_1_claims_use_pooled_rows_and_the_factors():
    cost, cause, _ = conditioned.PART.claims(trained(TABLE1))
    assert (cost.verdict, cause.verdict) == ("not at the paper's size", "undecided")
    apart = np.diff([factors_at(10123), factors_at(1541601)], axis=0)
    said = conditioned.quantiles_apart([10123, 1541601])
    assert said == pytest.approx(np.sqrt(np.mean(apart**2)), rel=0.25)


def test_table_1_rows_are_ordered_only_if_their_laws_differ_by_more_than_draws(monkeypatch):
    last = {"1541601": [60.0, 61, 62]}  # far below for any reason
    assert conditioned.PART.claims(trained(TABLE1 | last))[-1].verdict == "undecided"
    monkeypatch.setattr(conditioned, "quantiles_apart", lambda _: 0.1)
    assert conditioned.PART.claims(trained(TABLE1 | last))[-1].verdict == "confirmed"
    assert conditioned.PART.claims(trained(TABLE1))[-1].verdict == "undecided"


def test_seeds_added_later_do_not_decide_on_table_1():
    added = {name: [*values, 90.0, 40.0] for name, values in TABLE1.items() if name != "1"}
    rows = trained(added | {"1": [*TABLE1["1"], 40.0, 90.0]})
    assert decisions(rows)["cost"][1]["cost"] == decisions(trained(TABLE1))["cost"][1]["cost"]
    assert conditioned.caption_numbers(rows)["added"].endswith("(n=5)")


@pytest.mark.parametrize("condition", [10, 100, 1000])
def test_step_lengths_behind_log_uniform_factors_match_the_caption(condition):
    factors = log_uniform_quantile((np.arange(100_000) + 0.5) / 100_000, condition)
    length = np.sqrt(np.mean(factors**4)) / np.mean(factors**2)
    assert length == pytest.approx(conditioned.step_length(condition), rel=1e-3)
    assert length == pytest.approx(np.sqrt(np.log(condition)), rel=0.02)


def decisions(rows):
    return {name: rest for name, *rest in conditioned.decide(rows)}


@pytest.mark.parametrize(
    ("shorter", "verdict"),
    [
        ([74.0, 75, 76], "confirmed"),
        ([80.0, 81, 79], "undecided"),
        ([90.0, 91, 92], "contradicted"),
    ],
)
def test_steps_are_matched_along_the_gradient_and_in_length(shorter, verdict):
    others = {
        "no factors": [80.0, 81, 82],
        "log-uniform, 1000": [74.0, 75, 76.2],
        conditioned.LONGER: [79.0, 80, 81.1],
        conditioned.SHORTER: [79.0, 80.2, 81],
    }
    rows = trained(others | {conditioned.HARDEST_SHORTER: shorter})
    word, numbers = decisions(rows)["steps"]
    assert word == verdict
    assert numbers["along"].startswith("-5.93 ± 0.29 (n=3); ")
    assert numbers["alone"].startswith("-0.97 ±")
    assert decisions(trained(others))["steps"][0] == "undecided"
    assert "steps" not in decisions(trained(TABLE1))


def test_rates_for_steps_of_equal_length_are_multiples_of_the_usual_rate():
    by_name = {task.name: task.options for task in STUDY.part("conditioned").tasks("laptop", ())}
    rate = compose(by_name["no factors, seed 0"]).train.lr
    length = conditioned.step_length(1000)
    for name, wanted in (
        (conditioned.LONGER, rate * length),
        (conditioned.SHORTER, rate / length),
        (conditioned.HARDEST_SHORTER, rate / length),
    ):
        config = compose(by_name[f"{name}, seed 0"])
        assert config.train.lr == pytest.approx(wanted, rel=1e-3)
        hard = name == conditioned.HARDEST_SHORTER
        assert config.target.condition == (1000 if hard else None)


def factors_at(condition):
    """Quantiles of Theorem 2.2's law, by inverting the summed density on a fine grid."""
    root = (condition - 1) / (condition + 1)
    angles = np.linspace(0, np.pi, 400_001)
    squared = (1 - root) ** 2 + 4 * root * np.sin(angles / 2) ** 2
    density = np.sin(angles) ** 2 / squared
    summed = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return np.interp(np.linspace(0, 1, 2001), summed / summed[-1], np.sqrt(squared))


@pytest.mark.parametrize(
    ("last", "verdict"),
    [
        ([75.0, 76, 77], "confirmed"),
        ([76.0, 80, 78], "undecided"),
        ([81.0, 82, 83], "contradicted"),
    ],
)
def test_varied_spectra_have_their_own_claim(last, verdict):
    varied = {"no factors": [80.0, 81, 82], "log-uniform, 10": [79.0, 80.1, 81]}
    varied["log-uniform, 1000"] = last
    rest = {"log-uniform, 100": [78.0, 79.1, 80]}
    assert decisions(trained(varied | rest))["varied"][0] == verdict
    word, numbers = decisions(trained(varied))["varied"]
    assert word == ("contradicted" if verdict == "contradicted" else "undecided")
    assert "not computed yet at 100" in numbers["differences"]


@pytest.mark.parametrize(
    ("interval", "verdict"),
    [
        (Interval(0.1, 0.3, 3), "confirmed"),
        (Interval(0.1, 2.0, 3), "undecided"),
        (Interval(0.9, 0.5, 3), "undecided"),  # above 0
        (Interval(3.0, 1.0, 3), "contradicted"),
        (Interval(-3.0, 1.0, 3), "confirmed"),
        (Interval(0.1, None, 1), "undecided"),
    ],
)
def test_no_loss_needs_an_interval_below_a_point(interval, verdict):
    assert sparse.decide_loss(interval) == verdict


@pytest.mark.parametrize(("apart", "verdict"), [(1e-13, "confirmed"), (1e-6, "contradicted")])
def test_equal_performance_follows_from_the_same_steps_on_one_support(apart, verdict):
    steps = pd.DataFrame([{"density": 0.2, "steps": 20, "difference": apart}])
    accuracies = {sparse.MASKED[0.2]: [76.0, 77, 77.5], sparse.SCALES[0.2]: [70.0, 80, 77]}
    rows = pd.concat([steps, trained(accuracies | {sparse.SELECTED[0.2]: [70.5]})])
    exact, equal = sparse.PART.claims(rows)
    assert exact.verdict == equal.verdict == verdict
    assert "-1.17 ± 11.27 (n=3) at p = 0.2" in equal.evidence
    assert "0.50 points apart" in equal.evidence


def test_page_of_sparse_works_with_any_single_task():
    steps = pd.DataFrame([{"density": 0.2, "steps": 20, "difference": 1e-13}])
    for rows in (steps, trained({sparse.ALL: [80.0]}), trained({sparse.MASKED[0.5]: [75.0]})):
        assert len(sparse.PART.summary(rows)) == 1
        assert len(sparse.PART.claims(rows)) == (rows is steps)
    rows = pd.concat(
        [steps, trained({sparse.ALL: [80.0, 81, 82], sparse.MASKED[0.2]: [76.0, 77, 77.9]})]
    )
    in_print, loss = sparse.PART.claims(rows)[1:]
    assert loss.verdict == "contradicted"
    assert "4.03" in loss.evidence
    assert in_print.verdict == "undecided"
    wide = sparse.PART.claims(rows.assign(width=64))[1]
    assert (wide.statement, wide.verdict) == (in_print.statement, "contradicted")


def test_scales_and_weights_take_the_same_steps_on_one_support():
    options = ("target=vgg18_normalization", "data=digits", "scale=smoke", "target.groups=[1]")
    features = ("target.features=sparse_id_cond", "target.oversampling=0.5")
    row = sparse.compare_steps(0.5, 4, (*options, *features)).iloc[0]
    assert row["difference"] < 1e-12


def trained_from_scratch(weights, target):
    """Rows of three seeds; those with scales from 1 name no start, as in older results."""
    common = {"width": 16, "epochs": 10, "seconds": 400.0, "inner_scales_off": 0.0}
    common |= {"outer_scales_off": 0.0, "channels_never_active": 1.0}
    old = [
        common | {"inner": "scale", "excess": 100, "seed": seed, "accuracy": 60.0 + seed}
        for seed in range(3)
    ]
    new = [row | {"start": "weights", "accuracy": weights + 2 * row["seed"]} for row in old]
    targets = [row | {"inner": scratch.TARGET, "excess": None, "accuracy": target} for row in old]
    return pd.DataFrame([*targets, *old, *new])


@pytest.mark.parametrize(
    ("weights", "target", "verdicts"),
    [
        (70, 74, ["confirmed", "confirmed", "confirmed"]),
        (63, 84, ["confirmed", "confirmed", "contradicted"]),
        (60, 61, ["undecided", "undecided", "undecided"]),
        (50, 50, ["contradicted", "contradicted", "undecided"]),
    ],
)
def test_scratch_pairs_starts_and_targets_by_seed(weights, target, verdicts):
    rows = trained_from_scratch(weights, target)
    printed, *claims = scratch.PART.claims(rows)
    assert printed.verdict == "not at the paper's size"
    assert [claim.verdict for claim in claims] == verdicts
    lacked = mean_interval([target - 60 - seed for seed in range(3)])
    assert f"scale, n + 100: {lacked}." in claims[0].evidence
    gained = mean_interval([weights - 60 + seed for seed in range(3)])
    assert f"scale, n + 100: {gained}" in claims[1].evidence
    lacking = mean_interval([target - weights - 2 * seed for seed in range(3)])
    assert f"Points below weights: scale, n + 100: {lacking}" in claims[2].evidence
    starts = ["", *scratch.STARTS.values()]
    assert scratch.PART.summary(rows)["scales start at"].tolist() == starts


def test_scratch_compares_trainings_of_equal_length():
    rows = trained_from_scratch(70, 74)
    longer = trained_from_scratch(63, 84).assign(epochs=30)
    both = pd.concat([rows, longer], ignore_index=True)
    for claim, long in zip(
        *(scratch.PART.claims(part)[1:] for part in (both, longer)), strict=True
    ):
        assert claim == long  # its seeds were fixed in advance
    assert scratch.PART.summary(both)["epochs"].tolist() == [10] * 3 + [30] * 3
    with drawing.style():
        titles = [axes.get_title(loc="left") for axes in scratch.PART.draw(both).axes]
    assert titles == ["(a) 10 epochs", "(b) 30 epochs"]


def test_scratch_trains_one_excess_for_longer():
    tasks = scratch.PART.tasks("laptop", ())
    longer = [task for task in tasks if task.name.endswith(", 30 epochs")]
    assert (len(tasks), len(longer)) == (33, 15)
    assert all("train.epochs=30" in task.options for task in longer)
    assert {task.arguments["excess"] for task in longer} == {None, 100}
    assert len(scratch.PART.tasks("laptop", ("train.epochs=2",))) == 18


def test_scratch_decides_nothing_without_its_comparison():
    rows = trained_from_scratch(69, 74)
    alone = scratch.PART.claims(rows[rows["inner"] != scratch.TARGET])[1:]
    assert [claim.verdict for claim in alone] == ["undecided", "confirmed", "undecided"]
    one_seed = scratch.PART.claims(rows[rows["seed"] == 0])[1:]
    assert {claim.verdict for claim in one_seed} == {"undecided"}


def test_scratch_counts_small_scales_and_channels_positive_in_no_batch():
    norm = nn.BatchNorm2d(4).eval()
    norm.pair = CollapsedPair(LayerShape(1, 1), 4, "he_normal", "scale", 0, 0)  # does not run
    with torch.no_grad():
        norm.pair.gamma.copy_(torch.tensor([1.0, -1.0, 0.005, -0.005]))
        norm.weight.copy_(torch.tensor([1.0, -0.005, 0.0, 2.0]))
        norm.bias.copy_(torch.tensor([0.0, -1.0, 1.0, 0.0]))
    batches = torch.tensor([[-1.0, 0, 0, -1], [1, 0, 0, -1]]).reshape(2, 1, 4, 1, 1)
    data = SimpleNamespace(test_batches=lambda *_, **__: [(x, None) for x in batches])
    network = nn.Sequential()
    network.add_module("features", norm)
    shares = scratch.switched_off(network, data, torch.device("cpu"))
    assert shares == dict.fromkeys(scratch.SHARES, 50.0)
