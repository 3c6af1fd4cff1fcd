"""Intervals are Student's, and McNemar's test is exact."""

import itertools

import pytest

from bnrecon.reporting.statistics import mcnemar, mean_interval


def test_intervals_are_students():
    interval = mean_interval([94.0, 94.1, 94.3])
    assert interval.mean == pytest.approx(94.1333, abs=1e-4)
    assert interval.half_width == pytest.approx(
        4.302653 * 0.152753 / 3**0.5, rel=1e-5
    )  # t of 2 degrees of freedom
    assert mean_interval([5.0]).half_width is None
    assert mean_interval([5.0]).format() == "5.00 (n=1)"
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])


@pytest.mark.parametrize(("first", "second"), [(0, 0), (1, 0), (2, 7), (7, 2), (4, 4), (5, 6)])
def test_mcnemars_p_value_counts_all_ways_that_are_as_one_sided(first, second):
    """Every image that one alone has right is a coin; all 2^m ways to fall are counted."""
    found = abs(first - second)
    ways = list(itertools.product((-1, 1), repeat=first + second))
    assert mcnemar(first, second) == pytest.approx(
        sum(abs(sum(way)) >= found for way in ways) / len(ways), rel=1e-12
    )


def test_mcnemars_p_value_of_many_images_is_near_the_normal_one():
    """Edwards' continuity correction: z = (|b - c| - 1) / sqrt(b + c) is 1.9 here."""
    assert mcnemar(5000, 5191) == pytest.approx(0.0598, abs=2e-3)
