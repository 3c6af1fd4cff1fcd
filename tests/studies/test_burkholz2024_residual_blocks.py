"""Sect. 2.4 of Burkholz 2024: erratum 35's counterexample, and what decides the claim."""

import pytest

from bnrecon.studies.burkholz2024 import residual_blocks


@pytest.fixture(scope="module")
def rows():
    return residual_blocks.measure(4, 4, 3, 2)


def test_residual_blocks_train_less_than_four_times_as_many_scales(rows):
    """Erratum 35: c0 = c2, where the paper's count gives 4."""
    assert (rows["counted"] == 4).all()
    assert (rows["error"] < 1e-9 * rows["largest"]).all()
    factor = residual_blocks.times_two_layers(rows)
    empty = rows["before"] == residual_blocks.EMPTY
    assert factor[empty].max() < 1.6
    assert 2 < factor[~empty].min() <= factor[~empty].max() < 2.3
    assert residual_blocks.PART.claims(rows)[0].verdict == "contradicted"


@pytest.mark.parametrize(("column", "factor"), [("scales", 4), ("error", 1e9)])
def test_one_draw_that_fails_leaves_the_claim_open(rows, column, factor):
    last = len(rows) - 1
    rows = rows.astype({column: float})
    rows.loc[last, column] *= factor
    assert residual_blocks.PART.claims(rows)[0].verdict == "open"
