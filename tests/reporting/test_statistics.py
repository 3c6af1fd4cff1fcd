"""Intervals are Student's."""

import pytest

from bnrecon.reporting.statistics import mean_interval


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
