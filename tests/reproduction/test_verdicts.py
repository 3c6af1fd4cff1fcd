"""Verdicts: only what is certain counts as agreement, and rounding is the paper's, not ours."""

import random

import pytest

from bnrecon.reporting.result import Predictions
from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.verdicts import EQUIVALENT, Reported, against_paper, against_target

SAME, OTHER = Predictions(10_000, 0, 0, 0), Predictions(10_000, 4, 2, 2)
AGREEMENT = {"loss reproduced", "identical predictions", f"equivalent within {EQUIVALENT}"}


@pytest.mark.parametrize(
    ("mean", "half", "predictions", "expected"),
    [
        (0.0, 0.0, [SAME] * 3, "identical predictions"),
        (0.0, None, [SAME], "identical predictions"),  # counted, not estimated
        (0.0, 0.0, [SAME, OTHER, SAME], "equivalent within 0.05"),
        (0.0, 0.0, [SAME, None, SAME], "equivalent within 0.05"),
        (0.03, 0.02, [OTHER] * 3, "equivalent within 0.05"),
        (0.03, 0.021, [OTHER] * 3, "different"),
        (-0.2, 0.1, [OTHER] * 3, "different"),
        (0.03, 0.04, [OTHER] * 3, "cannot tell"),
        (0.9, None, [OTHER], "cannot tell"),
        (0.0, None, [], "cannot tell"),
    ],
)
def test_the_verdict_against_the_target(mean, half, predictions, expected):
    assert against_target(Interval(mean, half, len(predictions)), predictions) == expected


@pytest.mark.parametrize(
    ("mean", "half", "printed", "expected"),
    [
        (0.0, 0.0, (94.12, "94.12", "0.07"), "loss reproduced"),
        (0.0, 0.0, (94.12, "94.0", "0.1"), "loss reproduced"),  # 0.12 - 0.1 - 0.105 < 0
        (0.0, 0.3, (94.12, "94.0", "0.1"), "cannot tell"),
        (0.0, None, (94.12, "94.12", "0.07"), "cannot tell"),
        (0.0, 0.0, (70.46, "70.1", "0.2"), "different (smaller)"),  # 0.36 - 0.2 - 0.105 > 0
        (0.9, 0.1, (70.46, "70.1", "0.2"), "different (larger)"),
    ],
)
def test_the_verdict_against_the_paper(mean, half, printed, expected):
    loss, reported = Interval(mean, half, 3), Reported.printed(*printed)
    assert against_paper(loss, reported) == expected
    assert against_paper(loss, reported, possible=False) == "impossible in print"
    assert against_paper(loss, None) == ""


def test_half_a_unit_of_every_printed_number_is_allowed_for():
    assert Reported.printed(92.9, "92.5", "0.1").rounding == pytest.approx(0.15)
    assert Reported.printed(94.12, "94.34", "0.05").rounding == pytest.approx(0.015)
    assert Reported.printed(94.12, "94.0", "0.1").reach == pytest.approx(0.205)


def test_a_wider_interval_of_ours_never_turns_a_verdict_into_agreement():
    generator = random.Random(0)
    agreed = 0
    for _ in range(5000):
        mean, half = generator.uniform(-0.3, 0.3), generator.uniform(0, 0.1)
        wider = half + generator.uniform(0, 0.5)
        digits = generator.choice([1, 2])
        printed = f"{94.12 - generator.uniform(-0.1, 0.5):.{digits}f}"
        reported = Reported.printed(94.12, printed, generator.choice(["0.05", "0.1", "0.2"]))
        for verdict in (
            lambda loss, reported=reported: against_paper(loss, reported),
            lambda loss: against_target(loss, [OTHER] * 3),
        ):
            narrow, wide = verdict(Interval(mean, half, 3)), verdict(Interval(mean, wider, 3))
            agreed += wide in AGREEMENT
            assert wide not in AGREEMENT or narrow in AGREEMENT
            assert verdict(Interval(mean, None, 1)) == "cannot tell"
    assert agreed > 100


def test_different_means_that_the_intervals_do_not_meet():
    generator = random.Random(1)
    for _ in range(2000):
        reported = Reported(94.0, 94.0 - generator.uniform(-0.3, 0.3), generator.uniform(0, 0.2))
        mean, half = generator.uniform(-0.5, 0.5), generator.uniform(0, 0.2)
        meet = max(mean - half, reported.loss - reported.reach) <= min(
            mean + half, reported.loss + reported.reach
        )
        found = against_paper(Interval(mean, half, 3), reported)
        assert found.startswith("different") == (not meet)
