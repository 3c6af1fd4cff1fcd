"""Residual blocks (Burkholz 2024, Sect. 2.4) against a convolution, and their scales."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from bnrecon.construction.residual_blocks import residual_blocks


def drawn(outputs, inputs, kernel):
    target = torch.randn(outputs, inputs, *kernel, dtype=torch.float64)
    return target, torch.randn(2, inputs + outputs, 7, 6, dtype=torch.float64)


@pytest.mark.parametrize("overwrite", [False, True], ids=["empty", "filled"])
@pytest.mark.parametrize("blocks", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("outputs", "inputs", "kernel"), [(5, 3, (3, 3)), (5, 4, (1, 1)), (6, 2, (3, 1))]
)
def test_blocks_keep_x_and_add_the_targets_output(outputs, inputs, kernel, blocks, overwrite):
    torch.manual_seed(0)
    target, state = drawn(outputs, inputs, kernel)
    x = state[:, :inputs]
    if not overwrite:
        state = torch.cat([x, torch.zeros_like(state[:, inputs:])], 1)
    for block in residual_blocks(target, blocks, overwrite=overwrite):
        state = block(state)
    assert torch.equal(state[:, :inputs], x)
    wanted = F.conv2d(x, target, padding="same")
    assert (state[:, inputs:] - wanted).abs().max() < 1e-9 * wanted.abs().max()


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_scales_match_the_docstring(blocks):
    target, _ = drawn(8, 6, (3, 3))
    zeros = blocks * (8 + 6) - 8
    for overwrite, entries in (
        (False, 8 * 6 * 9 + 8**2 * 9 * (blocks - 1) // (2 * blocks)),
        (True, 8 * (6 + 8) * 9),
    ):
        built = residual_blocks(target, blocks, overwrite=overwrite)
        assert sum(block.scales for block in built) == entries + blocks + zeros
        assert sum(int((block.outer == 0).sum()) for block in built) == zeros


def test_no_two_blocks_have_the_same_weights():
    one, other, third = residual_blocks(torch.zeros(6, 3, 3, 3, dtype=torch.float64), 3)
    for name in ("first", "second"):
        weights = [getattr(block, name) for block in (one, other, third)]
        for a, b in itertools.combinations(weights, 2):
            assert torch.isin(a, b).double().mean() < 0.01  # float32 numbers coincide
