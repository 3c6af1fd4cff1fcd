"""Sect. 2.4 of Burkholz 2024: erratum 35's counterexample and the claim's verdict."""

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
    assert residual_blocks.PART.claims(rows)[0].verdict == "needs a correction"


def test_narrowest_residual_layers_train_the_papers_four_times():
    """Erratum 35: c0 blocks whose layers are all 2 c0 wide, with 4 c0² scales."""
    rows = residual_blocks.measure(8, 8, 1, 1)
    last = rows[(rows["before"] == residual_blocks.FILLED) & (rows["blocks"] == 8)].iloc[0]
    assert (last["widest"], last["scales"]) == (2 * 8, 4 * 8**2)
    assert last["error"] < 1e-9 * last["largest"]


def test_one_failed_draw_leaves_the_claim_undecided(rows):
    rows = rows.copy()
    rows.loc[len(rows) - 1, "error"] *= 1e9
    assert residual_blocks.PART.claims(rows)[0].verdict == "undecided"


def test_factor_of_four_in_every_state_leaves_the_claim_undecided(rows):
    filled = rows["before"] == residual_blocks.FILLED
    more = rows.assign(scales=rows["scales"].where(~filled, rows["scales"] * 4))
    assert residual_blocks.PART.claims(more)[0].verdict == "undecided"
    once = rows.assign(scales=rows["scales"].where(rows["blocks"] == 1, rows["scales"] * 4))
    assert residual_blocks.PART.claims(once)[0].verdict == "needs a correction"
