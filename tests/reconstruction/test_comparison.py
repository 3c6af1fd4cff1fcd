"""Differences between the outputs of source and model, judged by their size."""

import itertools

import pytest
import torch
from torch import nn

from bnrecon.reconstruction.comparison import compare, explain_difference
from bnrecon.runtime.errors import RunError


class Function(nn.Module):
    """Returns a function of its input."""

    def __init__(self, function):
        super().__init__()
        self.forward = function


def shifted(share=0.0):
    """Returns its input plus a share of its largest number."""
    return Function(lambda x: x + share * x.abs().max())


def two_outputs(share=0.0):
    """Returns two tensors: the input far from 0, and a small one."""
    return Function(lambda x: {"boxes": 100 * x + 365, "score": shifted(share)(x / 10)})


def rounded(x):
    """Jumps by 0.02 for nudged inputs."""
    return (50 * x).round() / 50


IMAGES = torch.randn(40, generator=torch.Generator().manual_seed(0))  # one number each


@pytest.mark.parametrize("share", [0.0, 0.0009, 0.002, 0.05, 0.09, 0.11, 0.5, 3.0])
def test_difference_above_a_thousandth_is_noted_and_above_a_tenth_fails(share):
    difference, notes = compare(shifted(share), shifted(), IMAGES)
    size = float((IMAGES - IMAGES.mean()).abs().max())
    assert difference.relative == pytest.approx(share * float(IMAGES.abs().max()) / size, rel=1e-3)
    assert notes == []
    assert len(explain_difference(difference, "why", accepted=True)) == (share > 0.001)
    if share > 0.1:
        with pytest.raises(RunError, match="outputs differ by"):
            explain_difference(difference, "why")
    else:
        assert len(explain_difference(difference, "why")) == (share > 0.001)


def test_small_output_is_compared_by_its_own_spread():
    difference, _ = compare(two_outputs(0.5), two_outputs(), IMAGES)
    assert (difference.output, difference.outputs) == (1, 2)
    assert difference.largest == pytest.approx(0.05 * float(IMAGES.abs().max()), rel=1e-3)
    with pytest.raises(RunError, match="output 2 of 2 differs"):
        explain_difference(difference, "why")


def test_channel_is_compared_by_its_own_spread():
    """Detectors return boxes and scores in one tensor."""

    def detector(sign):
        return Function(lambda x: torch.cat([20 * x + 365, (sign * x).sigmoid()], 1))

    difference, _ = compare(detector(-1), detector(1), IMAGES.reshape(20, 2))
    with pytest.raises(RunError, match="outputs differ by"):
        explain_difference(difference, "why")


@pytest.mark.parametrize("number", [0.0, torch.inf, torch.nan])
def test_outputs_without_information_are_not_verified(number):
    flat = Function(lambda x: torch.full_like(x, number))
    difference, (note,) = compare(flat, flat, IMAGES)
    assert difference is None
    assert note.startswith("outputs were not compared")


@pytest.mark.parametrize(
    "outputs",
    [lambda x: (x.argmax(1), torch.fft.fft(x).abs()), torch.fft.fft, torch.Tensor.to_sparse],
    ids=["whole", "complex", "sparse"],
)
def test_integer_complex_and_sparse_outputs_are_compared(outputs):
    ours, theirs = (Function(lambda x, sign=sign: outputs(sign * x)) for sign in (-1, 1))
    assert compare(ours, theirs, IMAGES.reshape(8, 5))[0].relative > 0.1
    assert compare(theirs, theirs, IMAGES.reshape(8, 5))[0].relative == 0


def test_nans_in_both_outputs_do_not_differ():
    difference, notes = compare(Function(torch.log), Function(torch.log), IMAGES)
    assert (difference.largest, notes) == (0.0, [])


def test_jumps_of_the_model_excuse_only_differences_of_their_size():
    model, images = Function(rounded), torch.linspace(-1, 1, 2000).reshape(40, 50)
    difference, (note,) = compare(Function(lambda x: rounded(x + 0.01)), model, images)
    assert difference is None
    assert "outputs were not compared: the model's own differ by" in note
    far = Function(lambda x: rounded(x) + 3)
    assert compare(far, model, images)[0].largest == pytest.approx(3.0)


@pytest.mark.parametrize(("factor", "excused"), [(9, True), (11, False)])
def test_model_that_changes_excuses_ten_times_its_own_change(factor, excused):
    calls = itertools.count()
    changing = Function(lambda x: x + next(calls) * 1e-3)  # 0, 1e-3 a call later
    off = Function(lambda x: x + factor * 1e-3)
    assert (compare(off, changing, IMAGES)[0] is None) == excused
