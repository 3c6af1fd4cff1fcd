"""Theorem 2.4 with zero padding: the counterexample of erratum 34, and the part."""

import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from bnrecon.studies.burkholz2024 import border


@pytest.mark.parametrize(("before", "wanted"), [(False, [-1, 0, 0, 0, -1]), (True, [0] * 5)])
def test_zeros_between_the_layers_subtract_the_constant_too_often(before, wanted):
    """Erratum 34: A = 1, B = (1, 1, 1), ReLU, b = Q1 = 1, at x = 0."""
    x, kernel = torch.zeros(1, 1, 5), torch.ones(1, 1, 3)
    padded = F.relu(F.pad(x, (1, 1)) + 1) if before else F.pad(F.relu(x + 1), (1, 1))
    assert (F.conv1d(padded, kernel) - 3).flatten().tolist() == wanted


@pytest.mark.parametrize("activation", border.ACTIVATIONS)
def test_only_zeros_behind_an_activation_with_a_constant_are_wrong(activation):
    rows = border.errors(7)
    of = rows[rows["activation"] == activation].set_index("padding")
    largest = {"tanh": 1e-3, "sigmoid": 1e-3}.get(activation, 1e-9)
    assert (of["inside"] < largest).all()
    assert (of.loc[[border.BEFORE, border.REPAIRED], "border"] < largest).all()
    assert (of.loc[border.BETWEEN, "border"] > 1) == (activation != "tanh")


@pytest.mark.parametrize("column", ["inside", "border"])
@pytest.mark.parametrize("activation", border.ACTIVATIONS)
def test_claim_needs_every_error_within_epsilon(activation, column):
    rows = border.errors(0)
    assert border.PART.claims(rows)[0].verdict == "confirmed"
    changed = (rows["activation"] == activation) & (rows["padding"] == border.BEFORE)
    worse = rows.assign(**{column: rows[column].where(~changed, 1.1 * border.EPSILON)})
    (claim,) = border.PART.claims(pd.concat([rows, worse.assign(seed=1)]))
    assert claim.verdict == "contradicted"
