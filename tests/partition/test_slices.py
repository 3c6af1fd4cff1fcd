"""Slices, refusals, drawings and the cost of a partition."""

import tracemalloc

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from networks import Composed
from planes import SQUARE, plane
from torch import nn

from bnrecon.partition import partition, random_network, slice_along, slice_of
from bnrecon.runtime.errors import RunError, UserError


def test_slices_keep_distances_and_recover_coordinates(digits):
    images = digits.train_x[:3].double() / 255
    slice_ = slice_of(images)
    at_images = slice_.coordinates(images)
    assert slice_.inputs(at_images).sub(images).abs().max() < 1e-12
    between = (images[1] - images[2]).norm().item()
    assert np.hypot(*(at_images[1] - at_images[2])) == pytest.approx(between)
    assert slice_of(images, margin=0.0).window.min(0) == pytest.approx(at_images.min(0))


def test_slices_through_one_or_two_inputs_have_random_directions(digits):
    images = digits.train_x[:2].double() / 255
    for count, window in ((1, SQUARE), (2, None)):
        first, again, other = (slice_of(images[:count], window, seed=seed) for seed in (0, 0, 1))
        assert torch.equal(first.directions, again.directions)
        at_images = first.coordinates(images[:count])
        assert first.inputs(at_images).sub(images[:count]).abs().max() < 1e-12
        gram = first.directions.flatten(1) @ first.directions.flatten(1).T
        assert gram.sub(torch.eye(2)).abs().max() < 1e-14
        assert not torch.allclose(first.directions[1], other.directions[1])
    length = (images[1] - images[0]).norm().item()  # the window extends by half of it
    assert first.window.min(0) == pytest.approx([-length / 2, -length / 2])
    assert first.window.max(0) == pytest.approx([1.5 * length, length / 2])
    with pytest.raises(UserError, match="window"):
        slice_of(images[:1])


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.Tanh()), r"1 \(Tanh\): not supported"),
        (nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)), "BatchNorm1d.*not supported"),
        (nn.Sequential(nn.Linear(3, 2), nn.ReLU()), r"shape \(2,\) does not fit"),
        (nn.Bilinear(2, 2, 2), r"\(Bilinear\): cannot be traced"),
    ],
)
def test_unsupported_networks_are_refused_in_one_line(network, message):
    with pytest.raises(UserError, match=message) as caught:
        partition(network, plane())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x.flatten(),
        lambda x: torch.flatten(x, start_dim=-2),
        lambda x: torch.cat([x, x]),
        lambda x: x + torch.ones(3, 2),
    ],
)
def test_operation_across_the_batch_is_refused(operation):
    network = Composed(lambda self, x: operation(self.layer(x).relu()), layer=nn.Linear(2, 2))
    with pytest.raises(UserError, match=r"joins the inputs of a batch|does not fit"):
        partition(network, plane())


def test_computation_hidden_from_the_trace_is_detected_in_one_region_of_a_thousand():
    """Clips tensors but not a trace's symbols, above all but one of a grid's values."""

    class Clipped(nn.Linear):
        def forward(self, input):
            output = super().forward(input)
            return output.clamp(max=self.limit) if isinstance(output, torch.Tensor) else output

    network = nn.Sequential(random_network(40, 2)[:-1], Clipped(40, 1)).double()
    network[1].limit = torch.inf
    exact = partition(network, plane())
    values = network(plane().inputs(exact.regions.centres()))
    network[1].limit = values.sort(0).values[-2].item()  # one centre is above
    assert len(exact.regions) > 1000
    with pytest.raises(RunError, match="differ from the network"):
        partition(network, plane())


def test_too_many_regions_are_refused_before_they_fill_the_memory():
    """The layer cuts the window into over a million regions."""
    with pytest.raises(UserError, match="max_regions=10 "):
        partition(random_network(20, 1), plane(), max_regions=10)
    network = random_network(2000, 1, batch_norm=False)
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="max_regions=5000 "):
            partition(network, plane(), max_regions=5000)
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()


def test_numbers_are_not_rounded_to_float32():
    slice_ = slice_along([0.1, 0.3], [[1.0, 0.0], [0.0, 1.0]], SQUARE)
    assert slice_.inputs(np.zeros((1, 2)))[0].tolist() == [0.1, 0.3]


def test_clockwise_triangular_window_is_accepted():
    parts = partition(random_network(6, 2), plane([[0, 1], [1, -1], [-1, -1]]))
    assert parts.regions.areas().sum() == pytest.approx(2.0)


def test_drawings_are_vector_lines_in_the_layers_colours():
    parts = partition(random_network(6, 3), plane())
    axes = Figure().subplots()
    lines = parts.draw(axes, layer=1)
    assert len(lines.get_segments()) == len(parts.folds.of(1))
    assert [len(part.get_segments()) for part in axes.collections] == [
        len(parts.folds.of(0)),
        len(parts.folds.of(1)),
    ]
    coloured = parts.draw(axes, layer=2, values=np.arange(6.0))
    assert (coloured.get_array() == parts.folds.of(2).unit).all()


def test_regions_are_filled_by_autograds_slopes():
    network = random_network(6, 2)
    parts = partition(network, plane())
    frame = parts.regions.to_frame()
    for row in frame.itertuples():
        centre = torch.tensor([row.s, row.t], dtype=torch.float64)[None]
        jacobian = torch.autograd.functional.jacobian(network, centre)
        assert row.slope_norm == pytest.approx(jacobian.norm().item(), rel=1e-12)
    assert frame["area"].sum() == pytest.approx(4.0)
    filled = parts.fill(Figure().subplots(), frame["slope_norm"])
    assert filled.get_array().tolist() == frame["slope_norm"].tolist()
    assert len(filled.get_paths()) == len(parts.regions)
    with pytest.raises(UserError, match="regions"):
        parts.fill(Figure().subplots(), np.zeros(3))


def test_network_is_not_changed():
    network = random_network(5, 2).float().train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    partition(network, plane())
    assert network.training
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
