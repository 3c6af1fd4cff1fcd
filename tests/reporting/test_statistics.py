"""Student's t intervals and McNemar's exact test."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from bnrecon.reporting import tables
from bnrecon.reporting.statistics import Interval, mcnemar, mcnemar_below, mean_interval


def test_one_value_has_no_interval():
    assert mean_interval([5.0]).half_width is None
    assert f"{mean_interval([5.0])}" == "5.00 (n=1)"
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])


@pytest.mark.parametrize("n", [2, 3, 10, 1000])
def test_interval_has_the_quantile_of_students_t(n):
    values = np.arange(n, dtype=float)
    wanted = round(stats.t.ppf(0.975, n - 1), 9) * values.std(ddof=1) / n**0.5
    interval = mean_interval(list(values))
    assert interval.half_width == pytest.approx(wanted, rel=1e-14)
    assert interval.mean == values.mean()


@pytest.mark.parametrize(
    ("mean", "half", "sign"),
    [(1, 2, 0), (3, 2, 1), (-3, 2, -1), (2, 2, 0), (-2, 2, 0), (1, 0.0, 1), (0, 0.0, 0)],
)
def test_sign_needs_an_interval_without_0(mean, half, sign):
    assert Interval(mean, half, 3).sign == Interval(np.float64(mean), half, 3).sign == sign
    assert Interval(mean, None, 1).sign == 0


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (2, 7), (7, 2), (4, 4), (5, 6)])
def test_mcnemar_counts_all_outcomes_at_least_as_one_sided(first, second):
    """Every image that only one network predicts is a coin; all 2^m outcomes are counted."""
    excess = abs(first - second)
    ways = list(itertools.product((-1, 1), repeat=first + second))
    assert mcnemar(first, second) == pytest.approx(
        sum(abs(sum(way)) >= excess for way in ways) / len(ways), rel=1e-12
    )


@pytest.mark.parametrize("images", [0, 5, 6, 9, 12])
@pytest.mark.parametrize("level", [0.05, 0.3])
def test_mcnemar_is_below_a_level_as_often_as_by_chance(images, level):
    ways = [sum(way) for way in itertools.product((0, 1), repeat=images)]
    below = sum(mcnemar(heads, images - heads) < level for heads in ways)
    assert mcnemar_below(level, images) == pytest.approx(below / len(ways), rel=1e-12)


def test_mcnemar_of_many_images_is_near_the_normal_value():
    """Edwards' continuity correction: z = (|b - c| - 1) / sqrt(b + c) is 1.9 here."""
    assert mcnemar(5000, 5191) == pytest.approx(0.0598, abs=2e-3)


def test_zero_has_no_sign_in_any_format():
    assert f"{Interval(-0.0001, 0.0002, 3):.3f}" == "0.000 ± 0.000 (n=3)"
    frame = pd.DataFrame({"gap": [-0.0001, Interval(-0.0001, None, 1), -0.2, 3]})
    assert tables.as_text(frame, {"gap": ".2f"})["gap"].tolist() == [
        *("0.00", "0.00 (n=1)", "-0.20", "3.00"),
    ]
