"""Verdicts: only certainty counts as agreement, and rounding is the paper's."""

import random

import pandas as pd
import pytest

from bnrecon.reporting.result import Predictions
from bnrecon.reporting.statistics import Interval
from bnrecon.studies.burkholz2024 import recipe
from bnrecon.studies.burkholz2024.run_tables.verdicts import (
    EQUIVALENT,
    Reported,
    against_paper,
    against_target,
)

UNTOLD, SAME = Predictions(10_000, 0, 0, 0), Predictions(10_000, 0, 0, 0, 10_000)
OTHER = Predictions(10_000, 4, 2, 2, 10_000)
WORSE = Predictions(10_000, 900, 400, 50, 256, 3.0)  # p = 7e-69
AGREEMENT = {
    "loss reproduced",
    "no more than reported",
    "identical predictions",
    "identical where tested",
    f"accuracy equivalent within {EQUIVALENT}",
}


def reserve(value, differ=0):
    """Predictions of which some images passed only through the collapsed form."""
    return Predictions(10_000, differ, 0, 0, 256, value)


@pytest.mark.parametrize(
    ("mean", "half", "predictions", "expected"),
    [
        (0.0, 0.0, [SAME] * 3, "identical predictions"),
        (0.0, None, [SAME], "identical predictions"),  # counted, not estimated
        (0.0, 0.0, [SAME, reserve(2.0), reserve(40.0)], "identical predictions"),
        (0.0, 0.0, [SAME, reserve(1.99), SAME], "identical where tested"),
        (0.0, 0.0, [reserve(None)] * 3, "identical predictions"),  # no logit differs at all
        (0.0, 0.0, [SAME, UNTOLD, SAME], "identical where tested"),  # from an older version
        (0.0, None, [UNTOLD], "identical where tested"),
        (0.0, 0.0, [reserve(40.0, differ=1)] * 3, "accuracy equivalent within 0.05"),
        (0.0, 0.0, [SAME, OTHER, SAME], "accuracy equivalent within 0.05"),
        (0.0, 0.0, [SAME, None, SAME], "accuracy equivalent within 0.05"),
        (0.03, 0.02, [OTHER] * 3, "accuracy equivalent within 0.05"),
        (0.03, 0.021, [OTHER] * 3, "different"),
        (-0.2, 0.1, [OTHER] * 3, "different"),
        (0.03, 0.04, [OTHER] * 3, "inconclusive"),
        (0.9, None, [OTHER], "inconclusive"),  # p = 1
        (3.5, None, [WORSE], "different"),  # one seed: McNemar's test decides
        (-3.5, None, [WORSE], "different"),
        (0.05, None, [WORSE], "inconclusive"),
        (3.5, None, [None], "inconclusive"),
        (3.5, 6.0, [WORSE] * 3, "inconclusive"),  # several seeds: the interval decides
        (0.0, None, [], "inconclusive"),
    ],
)
def test_verdict_against_the_target(mean, half, predictions, expected):
    assert against_target(Interval(mean, half, len(predictions)), predictions) == expected


@pytest.mark.parametrize(
    ("mean", "half", "printed", "expected"),
    [
        (0.0, 0.0, (94.12, "94.12 ± 0.07"), "no more than reported"),
        (0.0, 0.0, (94.12, "94.0 ± 0.1"), "no more than reported"),  # 0.12 - 0.1 - 0.105 < 0
        (0.2, 0.1, (94.12, "94.0 ± 0.1"), "no more than reported"),
        (0.2, 0.2, (70.46, "70.1 ± 0.2"), "inconclusive"),  # reaches below 0.36 - 0.305
        (0.36, 0.3, (70.46, "70.1 ± 0.2"), "loss reproduced"),
        (0.36, 0.31, (70.46, "70.1 ± 0.2"), "inconclusive"),
        (-0.2, 0.0, (70.0, "70.20 ± 0.05"), "loss reproduced"),  # a gain, reported as one
        (0.0, 0.3, (94.12, "94.0 ± 0.1"), "inconclusive"),
        (0.0, None, (94.12, "94.12 ± 0.07"), "inconclusive"),
        (0.0, 0.0, (70.46, "70.1 ± 0.2"), "different (smaller)"),  # 0.36 - 0.2 - 0.105 > 0
        (0.9, 0.1, (70.46, "70.1 ± 0.2"), "different (larger)"),
    ],
)
def test_verdict_against_the_paper(mean, half, printed, expected):
    loss, reported = Interval(mean, half, 3), Reported.printed(*printed)
    assert against_paper(loss, reported) == expected
    assert against_paper(loss, reported, possible=False) == "impossible in print"
    assert against_paper(loss, None) == ""
    wide = Reported.printed(*printed, width=64)
    assert against_paper(loss, wide, width=64) == expected
    assert against_paper(loss, wide, width=16) == "not compared (width 64 in print)"
    assert against_paper(loss, wide, possible=False, width=16) == "impossible in print"


def test_half_a_unit_of_every_printed_number_is_allowed():
    assert Reported.printed(92.9, "92.5 ± 0.1").rounding == pytest.approx(0.15)
    assert Reported.printed(94.12, "94.34 ± 0.05").rounding == pytest.approx(0.015)
    assert Reported.printed(94.12, "94.0 ± 0.1").reach == pytest.approx(0.205)


def test_wider_interval_never_turns_a_verdict_into_agreement():
    generator = random.Random(0)
    agreed = 0
    for _ in range(5000):
        mean, half = generator.uniform(-0.3, 0.3), generator.uniform(0, 0.1)
        wider = half + generator.uniform(0, 0.5)
        digits = generator.choice([1, 2])
        printed = f"{94.12 - generator.uniform(-0.1, 0.5):.{digits}f}"
        reported = Reported.printed(94.12, f"{printed} ± {generator.choice([0.05, 0.1, 0.2])}")
        for verdict in (
            lambda loss, reported=reported: against_paper(loss, reported),
            lambda loss: against_target(loss, [OTHER] * 3),
        ):
            narrow, wide = verdict(Interval(mean, half, 3)), verdict(Interval(mean, wider, 3))
            agreed += wide in AGREEMENT
            assert wide not in AGREEMENT or narrow in AGREEMENT
            assert verdict(Interval(mean, None, 1)) == "inconclusive"
    assert agreed > 100


def test_verdict_against_the_paper_describes_the_intervals():
    generator = random.Random(2)
    counts = dict.fromkeys(("loss reproduced", "no more than reported", "inconclusive"), 0)
    for _ in range(4000):
        reported = Reported(94.0, 94.0 - generator.uniform(-0.3, 0.3), generator.uniform(0, 0.2))
        low, high = reported.loss - reported.reach, reported.loss + reported.reach
        mean, half = generator.uniform(-0.5, 0.5), generator.uniform(0, 0.2)
        verdict = against_paper(Interval(mean, half, 3), reported)
        if max(mean - half, low) > min(mean + half, high):
            assert verdict.startswith("different")
            continue
        inside = low <= mean - half and mean + half <= high
        lossless = "no more than reported" if low <= 0 <= high else "loss reproduced"
        assert verdict == (lossless if inside else "inconclusive")
        counts[verdict] += 1
    assert min(counts.values()) > 100


def test_recipe_has_gaps_to_relu_and_no_verdict_on_single_trainings():
    def decision(**accuracies):
        settings = {f"{recipe.THIRD}; {name}": 80.0 for name in recipe.ACTIVATIONS}
        settings |= {f"{recipe.AFTER}; {name}": value for name, value in accuracies.items()}
        rows = pd.DataFrame(
            [{"setting": name, "accuracy": value} for name, value in settings.items()]
        )
        return recipe.decide(rows)

    verdicts, numbers = decision(**recipe.PRINTED)
    assert verdicts["order"] == "undecided"
    # Burkholz 2024, Table 1: 94.12, 94.37, 93.66 and 92.9
    printed = "-0.25 (leaky_relu), 0.46 (tanh), 1.22 (sigmoid)"
    assert numbers["gaps"] == numbers["printed"] == printed
    _, numbers = decision(relu=88.0, sigmoid=86.0)
    assert (numbers["gaps"], numbers["printed"]) == ("2.00 (sigmoid)", "1.22 (sigmoid)")
    assert "order" not in decision(sigmoid=86.0)[0]
