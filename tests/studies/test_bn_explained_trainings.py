"""The parts of Batch Normalization Explained that train networks: choices, pairs and verdicts."""

import pandas as pd
import pytest

from bnrecon.reporting.statistics import Interval
from bnrecon.runtime.errors import UserError
from bnrecon.studies.bn_explained import controlled_noise, figure10, initializations, table1
from bnrecon.studies.bn_explained.trained_networks import decide, paired_difference

TINY = ("data=digits", "scale=smoke", "device=cpu")


@pytest.fixture
def small(tmp_path):
    """Overrides of a training of a second."""
    return (*TINY, f"outputs={tmp_path}", "data.train_limit=256", "train.epochs=1")


def test_the_rate_that_validation_selects_is_trained_on_all_images(small):
    options = (
        "target=resnet9",
        *small,
        "train.test_every=1",
        "train.warmup_epochs=0",
        "target.initialization=frozen_statistics",
    )
    rates = [0.0001, 0.05]
    reached = {
        rate: initializations.train_at_rate(
            "frozen_statistics",
            rate,
            (*options, "data.validation=64", f"train.lr={rate:g}", "train.seed=0"),
        )
        for rate in rates
    }
    assert all(rows["images"].eq(64).all() for rows in reached.values())
    best = max(rates, key=lambda rate: reached[rate]["accuracy"].iloc[-1])
    rows = initializations.train_at_best_rate("frozen_statistics", 1, rates, 64, options)
    assert rows["rate"].eq(best).all()
    assert rows["images"].eq(128).all()  # the test images of scale=smoke
    assert rows["seed"].eq(1).all()


def test_a_training_that_diverges_is_a_result(small):
    options = ("target=resnet9", *small, "train.lr=1e30", "train.test_every=1")
    rows = initializations.train_at_rate("zero_bias", 1e30, options)
    assert rows["diverged"].all()
    assert rows["accuracy"].eq(0).all()


def test_test_images_select_no_learning_rate():
    """Selection holds out training images; the runs that are compared do not."""
    for task in figure10.PART.tasks("laptop", ()):
        held_out = any(option.startswith("data.validation=") for option in task.options)
        assert held_out == ("validation" in task.name)


@pytest.mark.parametrize(
    ("part", "option"),
    [
        (figure10, "target.initialization=zero_bias"),
        (figure10, "train.lr=0.1"),
        (table1, "target.affine=false"),
        (table1, "data=digits"),
        (controlled_noise, "target.virtual_batch=8"),
        (controlled_noise, "train.batch_size=64"),
    ],
)
def test_what_a_part_compares_cannot_be_set(part, option):
    with pytest.raises(UserError, match=option.split("=")[0]):
        part.PART.tasks("smoke", [option])


@pytest.mark.parametrize("part", [figure10, table1, controlled_noise])
@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
def test_each_task_is_trained_once(part, scale):
    tasks = part.PART.tasks(scale, ())
    assert len({task.name for task in tasks}) == len(tasks)
    assert len({(task.options, str(task.arguments)) for task in tasks}) == len(tasks)


def test_differences_are_paired_by_seed():
    rows = pd.DataFrame(
        [
            {"seed": seed, "kind": kind, "accuracy": seed * 10 + (1 + 0.1 * seed) * (kind == "a")}
            for seed in (0, 1, 2)
            for kind in ("a", "b")
        ]
    )
    found = paired_difference(rows, "kind", ("a", "b"))
    assert found.mean == pytest.approx(1.1)
    # s = 0.1, t_2 = 4.3027: small beside the spread of 10 between seeds.
    assert found.half_width == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
    assert paired_difference(rows, "kind", ("a", "c")) is None


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([Interval(2.0, 0.5, 3), Interval(1.0, 0.5, 3)], "confirmed"),
        ([Interval(2.0, 0.5, 3), Interval(-1.0, 0.5, 3)], "not confirmed"),
        ([Interval(2.0, 0.5, 3), Interval(0.4, 0.5, 3)], "open"),
        ([Interval(2.0, 0.5, 3), None], "open"),
        ([Interval(2.0, None, 1)], "open"),
        ([Interval(2.0, 0.0, 2)], "open"),
        ([], "open"),
    ],
)
def test_noise_decides_nothing(differences, verdict):
    assert decide(differences) == verdict


def table1_rows(differences):
    """Rows of both networks on cifar10 whose fixed minus learned are these, by seed."""
    return pd.DataFrame(
        [
            {
                "data": "cifar10",
                "network": network,
                "affine": affine,
                "seed": seed,
                "accuracy": 80.0 + (0 if affine else difference),
                "width": 8,
                "epochs": 4,
                "trained_on": 1000,
            }
            for network in ("RESNET", "CNN")
            for seed, difference in enumerate(differences)
            for affine in (True, False)
        ]
    )


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([-0.1, 0.0, 0.1], "confirmed"),
        ([-3.1, -3.0, -3.2], "not confirmed"),
        ([-3.0, 0.0, 3.0], "open"),
    ],
)
def test_very_little_impact_is_less_than_a_point(differences, verdict):
    assert table1.PART.claims(table1_rows(differences))[0].verdict == verdict


def test_table1_says_what_is_not_measured():
    lines = table1.PART.summary(table1_rows([-0.1, 0.0, 0.1])).set_index(["network", "data"])
    assert lines.loc[("RESNET", "svhn"), "fixed"] == "not measured"
    assert lines.loc[("Resnet50", "imagenet"), "learned"] == "not measured"
    assert lines.loc[("RESNET", "cifar10"), "fixed - learned"] == "+0.00 ± 0.25 (n=3)"
    assert lines.loc[("RESNET", "cifar10"), "fixed - learned, reported"] == "-3.2"


def noise_rows(gains):
    return pd.DataFrame(
        [
            {
                "data": "cifar10",
                "factor": factor,
                "seed": seed,
                "accuracy": 70.0 + seed + gain * (factor != 1),
                "training_accuracy": 75.0,
                "width": 8,
                "epochs": 4,
                "trained_on": 1000,
            }
            for seed, gain in enumerate(gains)
            for factor in (1.0, 1.15, 4.0)
        ]
    )


@pytest.mark.parametrize(
    ("gains", "verdicts"),
    [
        ([0.3, 0.4, 0.35, 0.3, 0.4], ["confirmed", "not confirmed"]),
        ([-0.3, -0.4, -0.35, -0.3, -0.4], ["not confirmed", "confirmed"]),
        ([-1.0, 1.0, 0.5, -0.5, 0.1], ["open", "open"]),
    ],
)
def test_noise_is_compared_with_the_same_seed_without_it(gains, verdicts):
    rows = noise_rows(gains)
    assert [claim.verdict for claim in controlled_noise.PART.claims(rows)] == verdicts
    lines = controlled_noise.PART.summary(rows)
    reported = dict(zip(lines["variances of μ and σ²"], lines["reported"], strict=False))
    assert reported["x 4"] == ""


def figure10_rows(gains, rates=(0.01, 0.1, 1.0), best=0.1, diverged=()):
    """Rows of two epochs; the gain of each start over zero bias, and starts whose seed 0 fails."""
    rows = []
    for start in figure10.STARTS:
        common = {"start": start, "data": "digits", "width": 4, "batch_size": 64, "images": 100}
        for rate in rates:
            row = {"kind": "validation", "rate": rate, "seed": 0, "epoch": 2, "accuracy": 20.0}
            rows.append(common | row | {"training_accuracy": 30.0, "diverged": False})
        for seed in range(3):
            for epoch in (1, 2):
                accuracy = 30 + 0.1 * seed * (start != "zero_bias") + gains.get(start, 0) * epoch
                failed = start in diverged and seed == 0
                row = {"kind": "test", "rate": best, "seed": seed, "epoch": epoch}
                row |= {"accuracy": 0.0 if failed else accuracy, "diverged": failed}
                rows.append(common | row | {"training_accuracy": 40.0})
    return pd.DataFrame(rows)


ALL_FROM_BN = {"frozen_statistics": 3, "folded_statistics": 2, "frozen_scale": 1}


def verdicts(rows):
    return [claim.verdict for claim in figure10.PART.claims(rows)]


def test_figure_10_confirms_what_is_better_and_faster_and_never_a_reason():
    assert verdicts(figure10_rows(ALL_FROM_BN)) == ["confirmed", "confirmed", "open", "open"]
    worse = {name: -gain for name, gain in ALL_FROM_BN.items()}
    assert verdicts(figure10_rows(worse))[:3] == ["not confirmed"] * 3


def test_figure_10_is_open_where_a_learning_rate_is_at_the_edge():
    claims = figure10.PART.claims(figure10_rows(ALL_FROM_BN, best=1.0))
    assert [claim.verdict for claim in claims[:2]] == ["open", "open"]
    assert "at the edge" in claims[0].evidence


def test_figure_10_leaves_out_what_diverged_and_counts_it():
    rows = figure10_rows(ALL_FROM_BN, diverged=("zero_bias",))
    lines = figure10.PART.summary(rows).set_index("initialization")
    assert lines.loc["zero bias", "test accuracy"].n == 2
    assert lines.loc["zero bias", "test accuracy"].mean > 20
    assert "are left out: 1." in figure10.PART.caption_for(rows)
