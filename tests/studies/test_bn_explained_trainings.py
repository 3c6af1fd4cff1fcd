"""The parts of Batch Normalization Explained that train networks: choices, pairs and verdicts."""

import numpy as np
import pandas as pd
import pytest
import torch

from bnrecon.studies.bn_explained import controlled_noise, figure10, table1
from bnrecon.studies.bn_explained.measured_noise import _ratio, _statistics, measure_noise
from bnrecon.targets.noisy_batchnorm import NoisyBatchNorm2d, batch_noise

TINY = ("data=digits", "scale=smoke", "device=cpu")
TRAINED = {  # training settings of the rows below
    "width": 8,
    "epochs": 4,
    "trained_on": 1000,
    "batch_size": 128,
    "lr": 0.1,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "warmup_epochs": 1,
    "crop_padding": 4,
    "flip": True,
}


@pytest.fixture
def small(tmp_path):
    """Overrides for a training of one second."""
    return (*TINY, f"outputs={tmp_path}", "data.train_limit=256", "train.epochs=1")


def test_rate_selected_by_validation_is_trained_on_all_images(small):
    options = (
        "target=resnet9",
        *small,
        "train.test_every=1",
        "train.warmup_epochs=0",
        "target.initialization=frozen_statistics",
    )
    rates = [0.0001, 0.05]
    reached = {
        rate: figure10.train_at_rate(
            "frozen_statistics",
            rate,
            (*options, "data.validation=64", f"train.lr={rate:g}", "train.seed=0"),
        )
        for rate in rates
    }
    assert all(rows["images"].eq(64).all() for rows in reached.values())
    best = max(rates, key=lambda rate: reached[rate]["accuracy"].iloc[-1])
    rows = figure10.train_at_best_rate("frozen_statistics", 1, rates, 64, options)
    assert rows["rate"].eq(best).all()
    assert rows["images"].eq(128).all()  # the test images of scale=smoke
    assert rows["seed"].eq(1).all()


def test_diverging_training_is_a_result(small):
    options = ("target=resnet9", *small, "train.lr=1e30", "train.test_every=1")
    rows = figure10.train_at_rate("zero_bias", 1e30, options)
    assert rows["diverged"].all()
    assert rows["accuracy"].eq(0).all()


def test_images_select_no_learning_rate():
    """Selection holds out training images; the compared runs do not."""
    for task in figure10.PART.tasks("laptop", ()):
        held_out = any(option.startswith("data.validation=") for option in task.options)
        assert held_out == ("validation" in task.name)


def started(frozen, rate=0.1):
    """Accuracies of BN's frozen start after each of four epochs; those of others are 60."""
    common = {"diverged": False, "images": 1000}
    tests = [
        common
        | {"kind": "test", "start": start, "seed": seed, "rate": rate, "epoch": epoch}
        | {"accuracy": accuracy + seed if start == figure10.BN else 60.0 + seed}
        for start in figure10.STARTS
        for seed in range(3)
        for epoch, accuracy in enumerate(frozen, 1)
    ]
    tried = [
        common
        | {"kind": "validation", "start": "zero_bias", "rate": one, "epoch": 4}
        | {"accuracy": 80.0}
        for one in (0.01, 0.1, 1.0)
    ]
    return pd.DataFrame([*tests, *tried])


@pytest.mark.parametrize(
    ("rows", "better", "faster"),
    [
        (started([70, 70, 70, 70]), "confirmed", "confirmed"),
        (started([50, 50, 50, 50]), "contradicted", "contradicted"),
        (started([90, 10, 70, 70]), "confirmed", "contradicted"),  # 50 in the first half
        (started([70, 70, 70, 70], rate=0.01), "undecided", "undecided"),  # the smallest tried
        (started([70, 70, 70, 70], rate=1.0), "undecided", "undecided"),  # the largest
    ],
)
def test_start_from_bn_statistics_is_judged_inside_the_range_of_rates(rows, better, faster):
    verdicts, _ = figure10.decide(rows)
    assert (verdicts["better"], verdicts["faster"]) == (better, faster)
    errors = figure10._validation(rows, "zero_bias")["error"]
    assert errors.to_numpy() == pytest.approx(100 * (0.8 * 0.2 / 1000) ** 0.5)


def table1_rows(differences):
    """Rows of both networks on cifar10; ``differences``: fixed minus learned, by seed."""
    return pd.DataFrame(
        [
            {
                "data": "cifar10",
                "network": network,
                "affine": affine,
                "seed": seed,
                "accuracy": 80.0 + (0 if affine else difference),
                "seconds": 1.0,
                **TRAINED,
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
        ([-3.1, -3.0, -3.2], "contradicted"),
        ([-3.0, 0.0, 3.0], "undecided"),
    ],
)
def test_very_little_impact_is_less_than_a_point(differences, verdict):
    assert table1.PART.claims(table1_rows(differences))[1].verdict == verdict


def test_very_little_impact_needs_all_comparisons():
    rows = table1_rows([-0.1, 0.0, 0.1])
    unpaired = (rows["network"] == "CNN") & rows["affine"]
    for part in (rows[~unpaired], rows[rows["network"] == "RESNET"]):
        verdicts, numbers = table1.decide(part)
        assert verdicts["trained"] == "undecided"
        assert numbers["comparisons"] == 2


def test_printed_table_1_has_differences_above_a_point_and_chance():
    """RESNET on cifar10 and cifar100, two of ImageNet; not RESNET on svhn: 0.1 of 0.4."""
    verdicts, numbers = table1.decide(table1_rows([0.0, 0.1, 0.2]))
    assert verdicts["as printed"] is False
    assert [numbers["cells"][name] for name in ("large", "n")] == [2, 8]
    assert [numbers["imagenet"][name] for name in ("large", "n")] == [2, 3]


def noise_rows(gains, data="cifar10"):
    return pd.DataFrame(
        [
            {
                "data": data,
                "kind": "trained",
                "factor": factor,
                "seed": seed,
                "accuracy": 70.0 + seed + gain * (factor != 1),
                "training_accuracy": 75.0,
                **TRAINED,
            }
            for seed, gain in enumerate(gains)
            for factor in (1.0, 1.15, 4.0)
        ]
    )


def measured_rows(ratio):
    """Measured factors of the noise that is nominally 1.15."""
    row = {"data": "cifar10", "kind": "measured", "factor": 1.15, "draws": 10, "error": 0.01}
    return pd.DataFrame(
        [
            row
            | {"source": source, "statistic": statistic, "layer": layer}
            | {"ratio": 1.15 if source == "batch" or layer == 1 else ratio}
            for source in ("noise", "batch")
            for statistic in ("mean", "variance")
            for layer in (1, 2)
        ]
    )


def noise_verdicts(*rows):
    claims = controlled_noise.PART.claims(pd.concat(rows, ignore_index=True))
    return [claim.verdict for claim in claims]


SIZE = "not at the paper's size"
GAINS = [0.3, 0.4, 0.35, 0.3, 0.4]
LOSSES = [-gain for gain in GAINS]
UNCLEAR = [-1.0, 1.0, 0.5, -0.5, 0.1]


@pytest.mark.parametrize(
    ("gains", "verdicts"),
    [
        (GAINS, ["confirmed", "undecided", SIZE, SIZE]),
        (LOSSES, ["contradicted", "undecided", SIZE, SIZE]),
        (UNCLEAR, ["undecided", "undecided", "undecided", SIZE]),
    ],
)
def test_noise_is_paired_by_seed_with_no_noise(gains, verdicts):
    rows = noise_rows(gains)
    assert noise_verdicts(rows, measured_rows(9.0)) == verdicts
    lines = controlled_noise.PART.summary(pd.concat([rows, measured_rows(9.0)]))
    cifar10 = lines[lines["data"] == "cifar10"].set_index("nominal factor (Eq. 13)")
    assert cifar10.loc["4", "reported"] == ""
    assert cifar10.loc["1.15", "var(μ), measured, with noise"] == "1.15; 9.00"


def test_fifteen_percent_claim_needs_measured_noise():
    rows = noise_rows(GAINS)
    assert noise_verdicts(rows, measured_rows(1.16))[1] == "confirmed"
    assert noise_verdicts(rows, measured_rows(1.4))[1] == "undecided"
    assert noise_verdicts(rows, measured_rows(1.16).assign(error=0.1))[1] == "undecided"


def test_one_data_set_shows_detrimental_jitter():
    """With two data sets each interval is wider: 97.5%."""
    mixed = noise_rows(LOSSES), noise_rows(GAINS, "cifar100"), measured_rows(9.0)
    assert noise_verdicts(*mixed)[2] == SIZE  # narrow
    wide = [rows.assign(width=64) for rows in mixed[:2]]
    assert noise_verdicts(*wide, mixed[2])[2] == "confirmed"
    assert noise_verdicts(noise_rows(GAINS).assign(width=64), mixed[2])[2] == "contradicted"
    # mean -0.5, s = 0.35, n = 5: the half-width is 0.43 at 95%, and 0.55 at 97.5%
    weak = list(0.35 * np.array([-1.0, -1.0, 0.0, 1.0, 1.0]) - 0.5)
    assert noise_verdicts(noise_rows(weak), measured_rows(9.0))[2] == SIZE
    both = noise_rows(weak), noise_rows(UNCLEAR, "cifar100"), measured_rows(9.0)
    assert noise_verdicts(*both)[2] == "undecided"


def test_measured_statistics_are_those_a_layer_normalizes_by():
    """With the noise redrawn from the same seed, by the formula of NoisyBatchNorm2d."""
    images = 2 + 3 * torch.randn(3, 20, 2, 5, 5)
    measured = _statistics(NoisyBatchNorm2d(2, virtual_batch=4), iter(images))
    torch.manual_seed(0)
    for batch, values in zip(images, measured[0], strict=True):
        shift, scale = batch_noise(batch, 4)
        variance, mean = torch.var_mean(batch, (0, 2, 3), correction=0)
        expected = torch.stack([mean + variance.sqrt() * shift, variance * scale**2])
        assert values == pytest.approx(expected.numpy(), rel=1e-4)


def test_ratio_error_is_that_of_independent_samples():
    """Each variance of normal samples has the relative error sqrt(2 / n)."""
    generator = np.random.Generator(np.random.Philox(0))
    one, other = generator.normal(size=(2, 400, 1))
    _, error = _ratio(one, other, paired=False)
    assert error == pytest.approx((2 * 2 / 400) ** 0.5, rel=0.3)
    assert _ratio(2 * one, one, paired=True) == pytest.approx((4.0, 0.0))


def test_nominal_factor_4_holds_in_the_first_layer_only(tmp_path):
    """Erratum 29 in a network: layers above have more noise, but smaller batches do not."""
    options = (*TINY, f"outputs={tmp_path}", "target=resnet9", "data.train_limit=1024")
    rows = measure_noise("digits", [4], 60, (*options, "train.batch_size=128", "target.width=8"))
    means = rows[rows["statistic"] == "mean"].set_index(["source", "layer"])
    first = means.loc[("noise", 1)]
    assert abs(first["ratio"] - 4) < 4 * first["error"] + 0.4  # batches without replacement
    above = means.loc["noise"].iloc[1:]
    assert (above["ratio"] > 4 + above["error"]).sum() >= 6
    assert (means.loc["batch", "ratio"] < above["ratio"].median()).all()
    assert set(rows["batch"]) == {32}
