"""What a difference between the outputs of source and model means, by its size."""

import pytest
import torch
from torch import nn

from bnrecon.reconstruction.comparison import compare
from bnrecon.runtime.errors import RunError


class Off(nn.Module):
    """Puts out its input, a share of the largest number added."""

    def __init__(self, share=0.0):
        super().__init__()
        self.share = share

    def forward(self, x):
        return x + self.share * x.abs().max()


class Rounded(nn.Module):
    """Its outputs jump by 0.02 where inputs are nudged."""

    def forward(self, x):
        return (50 * x).round() / 50


IMAGES = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("share", [0.002, 0.05, 0.09])
def test_outputs_that_are_a_little_off_are_noted(share):
    found, (note,) = compare(Off(share), Off(), IMAGES, exact=True)
    assert found.largest == pytest.approx(share * found.size, rel=1e-4)
    assert "or rounding adds up" in note


@pytest.mark.parametrize("share", [0.11, 0.5, 3.0])
def test_outputs_that_are_far_off_are_a_failure_where_every_layer_is_exact(share):
    with pytest.raises(RunError, match="every layer is rebuilt, and yet outputs differ"):
        compare(Off(share), Off(), IMAGES, exact=True)
    assert compare(Off(share), Off(), IMAGES, exact=False)[1] == []


@pytest.mark.parametrize("share", [0.0, 0.0009])
def test_outputs_that_differ_as_rounding_does_need_no_note(share):
    assert compare(Off(share), Off(), IMAGES, exact=True)[1] == []


def test_numbers_that_are_none_in_both_do_not_differ():
    class Log(nn.Module):
        def forward(self, x):
            return x.log()

    found, notes = compare(Log(), Log(), IMAGES, exact=True)
    assert (found.largest, notes) == (0.0, [])


def test_jumps_of_the_model_excuse_differences_of_their_own_size_alone():
    class Far(nn.Module):
        def forward(self, x):
            return Rounded()(x) + 3

    class Near(nn.Module):
        def forward(self, x):
            return Rounded()(x + 0.01)

    images = torch.linspace(-1, 1, 2000).reshape(40, 50)
    found, (note,) = compare(Near(), Rounded(), images, exact=True)
    assert found is None
    assert "outputs were not compared: the model's own differ by" in note
    with pytest.raises(RunError, match="and yet outputs differ"):
        compare(Far(), Rounded(), images, exact=True)
