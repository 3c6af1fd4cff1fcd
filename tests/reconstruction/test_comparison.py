"""What a difference between the outputs of source and model means, by its size."""

import pytest
import torch
from torch import nn

from bnrecon.reconstruction.comparison import compare, explain_difference
from bnrecon.runtime.errors import RunError


class Of(nn.Module):
    """Puts out what a function makes of its input."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


def off(share=0.0):
    """Puts out its input, a share of the largest number added."""
    return Of(lambda x: x + share * x.abs().max())


def both(share=0.0):
    """Puts out two tensors: its input far from 0, and a small one."""
    return Of(lambda x: {"boxes": 100 * x + 365, "score": off(share)(x / 10)})


def rounded(x):
    """Jumps by 0.02 where inputs are nudged."""
    return (50 * x).round() / 50


IMAGES = torch.randn(40, generator=torch.Generator().manual_seed(0))  # of one number each


@pytest.mark.parametrize("share", [0.0, 0.0009, 0.002, 0.05, 0.09, 0.11, 0.5, 3.0])
def test_outputs_a_thousandth_off_are_noted_and_a_tenth_off_a_failure_unless_they_may_be(share):
    difference, notes = compare(off(share), off(), IMAGES)
    size = float((IMAGES - IMAGES.mean()).abs().max())
    assert difference.relative == pytest.approx(share * float(IMAGES.abs().max()) / size, rel=1e-3)
    assert notes == []
    assert len(explain_difference(difference, "why", accepted=True)) == (share > 0.001)
    if share > 0.1:
        with pytest.raises(RunError, match="outputs differ by"):
            explain_difference(difference, "why")
    else:
        assert len(explain_difference(difference, "why")) == (share > 0.001)


def test_a_small_output_is_compared_by_its_own_spread():
    difference, _ = compare(both(0.5), both(), IMAGES)
    assert (difference.output, difference.outputs) == (1, 2)
    assert difference.largest == pytest.approx(0.05 * float(IMAGES.abs().max()), rel=1e-3)
    with pytest.raises(RunError, match="output 2 of 2 differs"):
        explain_difference(difference, "why")


def test_a_channel_of_a_tensor_is_compared_by_its_own_spread():
    """Boxes and scores in one tensor, as detectors put them out."""

    def detector(sign):
        return Of(lambda x: torch.cat([20 * x + 365, (sign * x).sigmoid()], 1))

    difference, _ = compare(detector(-1), detector(1), IMAGES.reshape(20, 2))
    with pytest.raises(RunError, match="outputs differ by"):
        explain_difference(difference, "why")


@pytest.mark.parametrize("number", [0.0, torch.inf, torch.nan])
def test_outputs_that_tell_nothing_are_not_verified(number):
    flat = Of(lambda x: torch.full_like(x, number))
    difference, (note,) = compare(flat, flat, IMAGES)
    assert difference is None
    assert note.startswith("outputs were not compared")


@pytest.mark.parametrize(
    "outputs",
    [lambda x: (x.argmax(1), torch.fft.fft(x).abs()), torch.fft.fft, torch.Tensor.to_sparse],
    ids=["whole", "complex", "sparse"],
)
def test_whole_complex_and_sparse_outputs_are_compared(outputs):
    ours, theirs = (Of(lambda x, sign=sign: outputs(sign * x)) for sign in (-1, 1))
    assert compare(ours, theirs, IMAGES.reshape(8, 5))[0].relative > 0.1
    assert compare(theirs, theirs, IMAGES.reshape(8, 5))[0].relative == 0


def test_numbers_that_are_none_in_both_do_not_differ():
    difference, notes = compare(Of(torch.log), Of(torch.log), IMAGES)
    assert (difference.largest, notes) == (0.0, [])


def test_jumps_of_the_model_excuse_differences_of_their_own_size_alone():
    model, images = Of(rounded), torch.linspace(-1, 1, 2000).reshape(40, 50)
    difference, (note,) = compare(Of(lambda x: rounded(x + 0.01)), model, images)
    assert difference is None
    assert "outputs were not compared: the model's own differ by" in note
    far = Of(lambda x: rounded(x) + 3)
    assert compare(far, model, images)[0].largest == pytest.approx(3.0)
