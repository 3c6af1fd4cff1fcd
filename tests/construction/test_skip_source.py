"""Theorem 2 of Giannou et al. 2023: the chain of blocks, its widths and its limits in float64."""

import pytest
import torch
from networks import relu_target

from bnrecon.construction.skip_source import SkipChain, skip_chain
from bnrecon.runtime.errors import RunError


def test_chain_has_the_theorems_depth_and_width():
    network = skip_chain(relu_target([6, 6]), block=2).network
    (chain,) = [m for m in network.modules() if isinstance(m, SkipChain)]
    mixes = [segment.mix for segment in chain.segments()]
    lifts = [segment.lift for segment in chain.segments()]
    assert [tuple(m.weight.shape) for m in mixes] == [(12, 12)] * 3
    assert [tuple(m.weight.shape) for m in lifts] == [(12, 2)] * 3
    assert tuple(chain.out.weight.shape) == (6, 12)


def test_conditions_grow_from_the_chains_last_layer_to_its_first():
    segments = skip_chain(relu_target([7, 7]), block=1, conditions=True).segments
    assert segments[0].condition > 1e4 * segments[-1].condition
    assert segments[-1].relative_error < 1e-12


def test_unread_inputs_get_no_block():
    target = relu_target([6, 4, 3])
    with torch.no_grad():
        target[0].weight[:, [1, 5]] = 0
        target[2].weight[:, 3] = 0
    rebuilt = skip_chain(target, block=2)
    assert rebuilt.functional_error < 1e-9
    assert [(s.name, s.block) for s in rebuilt.segments] == [("0", 0), ("0", 1), ("2", 0), ("2", 1)]
    with torch.no_grad():
        target[0].weight.zero_()
    assert skip_chain(target, block=2).functional_error < 1e-9


@pytest.mark.parametrize("sizes", [[8, 8, 4], [5, 100], [100, 5], [3, 1, 9]])
def test_default_chain_has_as_many_blocks_as_float64_allows(sizes):
    for seed in range(3):
        rebuilt = skip_chain(relu_target(sizes, seed=seed), seed=seed)
        assert rebuilt.functional_error < 1e-9
        assert rebuilt.notes == ()


def test_chain_beyond_float64_is_an_error_that_holds_the_chain():
    with pytest.raises(RunError, match="give a larger block") as raised:
        skip_chain(relu_target([20, 20]), block=1)
    assert len(raised.value.reconstruction.segments) == 20
    assert raised.value.reconstruction.functional_error > 0.1
