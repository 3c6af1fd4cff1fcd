"""The exact partition of a slice, against dense grids, known counts and the network."""

import numpy as np
import pytest
import torch
import torchvision
from networks import Composed, recorded
from planes import SQUARE, plane
from torch import nn

from bnrecon.partition import partition, random_network, set_statistics, slice_of
from bnrecon.runtime.errors import UserError


def arrangement(normals, offsets):
    """One layer whose units are zero where ``normals @ x = offsets``."""
    normals = torch.as_tensor(normals, dtype=torch.float64)
    network = nn.Sequential(nn.Linear(2, len(normals)), nn.LeakyReLU(0.1)).double()
    with torch.no_grad():
        network[0].weight.copy_(normals)
        network[0].bias.copy_(-torch.as_tensor(offsets))
    return network


def convolutional():
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 3, padding=1),
        nn.LeakyReLU(0.2),
        nn.MaxPool2d(2, stride=1, padding=1),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(16, 3),
    ).double()


class Residual(nn.Module):
    """A residual network by functions: sums, abs, a view that keeps the batch, a product."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(2, 9), nn.Linear(9, 9)
        self.last = nn.Linear(9, 2)
        self.shift = nn.Parameter(torch.randn(9))

    def forward(self, x):
        x = torch.abs(self.first(x))
        x = torch.relu(self.second(x) + self.shift) + 0.5 * x
        x += torch.nn.functional.leaky_relu(x - self.shift, 0.3)
        return self.last(x.view(x.size(0), -1))


def embedded_images(digits, count):
    return digits.train_x[:count].permute(0, 3, 1, 2).double() / 255


def networks(digits):
    images = embedded_images(digits, 60)
    yield "leaky", random_network(12, 3, batch_norm=False), plane()
    yield "batchnorm", random_network(12, 3), plane()
    yield "residual", Residual().double(), plane()
    network = set_statistics(convolutional(), images)
    yield "convolutional", network, slice_of(images[:3], SQUARE)


@pytest.fixture(scope="module", params=["leaky", "batchnorm", "residual", "convolutional"])
def case(request, digits):
    name, network, slice_ = next(row for row in networks(digits) if row[0] == request.param)
    return network.eval(), slice_, partition(network, slice_)


def grid(slice_, side=23):
    low, high = slice_.window.min(0), slice_.window.max(0)
    axes = [np.linspace(a, b, side + 2)[1:-1] for a, b in zip(low, high, strict=True)]
    return np.stack(np.meshgrid(*axes), -1).reshape(-1, 2) + 1e-4 * np.pi


def outputs(network, slice_, points):
    with torch.no_grad():
        return network(slice_.inputs(points)).flatten(1).numpy()


def at(maps, points):
    return maps[..., 0] + np.einsum("noi,ni->no", maps[..., 1:], points)


def states(network, slice_, points):
    """Every unit's state: signs before activations, winners of poolings."""
    states = []
    kinds = (nn.ReLU, nn.LeakyReLU, nn.MaxPool2d)
    for module, (x, _) in recorded(network, kinds, slice_.inputs(points)).items():
        if isinstance(module, nn.MaxPool2d):
            options = (module.kernel_size, module.stride, module.padding)
            x = nn.functional.max_pool2d(x, *options, return_indices=True)[1]
            states.append(x.flatten(1))
        else:
            states.append((x > 0).flatten(1).long())
    return torch.cat(states, 1).numpy()


def test_affine_maps_match_the_network_in_all_regions_which_fill_the_window(case):
    network, slice_, parts = case
    areas = parts.regions.areas()
    assert areas.min() > 0
    assert areas.sum() == pytest.approx(4.0, rel=1e-12)
    points = grid(slice_)
    region = parts.regions.locate(points)
    assert (region >= 0).all()
    expected = outputs(network, slice_, points)
    assert at(parts.regions.maps[region], points) == pytest.approx(expected, abs=1e-12)
    centres = parts.regions.centres()
    assert at(parts.regions.maps, centres) == pytest.approx(
        outputs(network, slice_, centres), abs=1e-12
    )


def test_grid_points_share_a_state_exactly_if_they_share_a_region(digits):
    network = random_network(12, 3)
    parts = partition(network, plane())
    points = grid(plane(), 61)
    region = parts.regions.locate(points)
    pattern = states(network, plane(), points)
    keys = np.unique(pattern, axis=0, return_inverse=True)[1].ravel()
    # One state per region and one region per state: the same partition of the points.
    pairs = {(int(a), int(b)) for a, b in zip(region, keys, strict=True)}
    assert len(pairs) == len(set(region)) == len(set(keys)) > 30


def test_no_unit_changes_state_within_a_region_of_a_convolutional_network(digits):
    network, slice_ = next(row[1:] for row in networks(digits) if row[0] == "convolutional")
    network.eval()
    regions = partition(network, slice_).regions
    big = np.flatnonzero(regions.areas() > 1e-4)[:200]
    points, region = [], []
    for index in big:
        corners = regions[index].vertices
        points += list(0.95 * corners + 0.05 * corners.mean(0))
        region += [index] * len(corners)
    pattern = states(network, slice_, np.array(points))
    # Ties of zeros after a ReLU have no winner; the value is the same for either.
    _, first = np.unique(region, return_index=True)
    owner = np.searchsorted(np.sort(first), np.arange(len(region)), side="right") - 1
    signs = np.r_[0 : 3 * 64, 3 * 64 + 3 * 16 : 3 * 64 + 3 * 16 + 4 * 16]
    assert (pattern[:, signs] == pattern[np.sort(first)[owner]][:, signs]).all()


def test_network_is_continuous_along_folds_up_to_rounding(case):
    network, slice_, parts = case
    middle = parts.folds.ends.mean(1)
    normal = np.diff(parts.folds.ends, axis=1)[:, 0] @ np.array([[0.0, 1.0], [-1.0, 0.0]])
    normal /= np.hypot(*normal.T)[:, None]
    some = np.random.default_rng(0).permutation(len(middle))[:200]
    sides = [parts.regions.locate(middle[some] + 1e-8 * sign * normal[some]) for sign in (1, -1)]
    inside = (sides[0] >= 0) & (sides[1] >= 0)
    maps = [parts.regions.maps[side[inside]] for side in sides]
    values = [at(part, middle[some][inside]) for part in maps]
    assert np.abs(values[0] - values[1]).max() < 1e-7
    assert (sides[0] != sides[1])[inside].mean() > 0.98  # a fold separates two regions


def test_window_has_1_plus_lines_plus_inner_crossings_regions():
    rng = np.random.default_rng(0)
    normals, offsets = rng.normal(size=(150, 2)), rng.normal(size=150)
    parts = partition(arrangement(normals, offsets), plane())
    i, j = np.triu_indices(150, 1)
    pairs = np.stack([normals[i], normals[j]], 1)
    crossings = np.linalg.solve(pairs, np.stack([offsets[i], offsets[j]], 1)[..., None])[..., 0]
    inside = int((np.abs(crossings) < 1).all(1).sum())
    assert len(parts.regions) == 1 + len(parts.folds) + inside


@pytest.mark.parametrize("shift", [0.0, 1e-13])
def test_concurrent_and_coincident_lines_leave_no_slivers(shift):
    angles = np.linspace(0, np.pi, 40, endpoint=False)
    normals = np.stack([np.cos(angles), np.sin(angles)], 1)
    centre = np.array([0.1, 0.2])
    offsets = normals @ centre
    doubled = np.concatenate([normals, -3 * normals])
    parts = partition(
        arrangement(doubled, np.concatenate([offsets, -3 * offsets + shift])), plane()
    )
    assert len(parts.regions) == 80
    assert len(parts.folds) == 80  # both of each pair are recorded


def test_nearly_parallel_lines_are_all_cut():
    angles = 1e-6 * np.arange(20)
    normals = np.stack([np.cos(angles), np.sin(angles)], 1)
    offsets = 1e-4 * np.arange(20)
    parts = partition(arrangement(normals, offsets), plane())
    assert len(parts.regions) == 21
    assert parts.regions.areas().sum() == pytest.approx(4.0, rel=1e-12)


def test_folds_are_the_zero_sets_of_their_units(case):
    network, slice_, parts = case
    for index, layer in enumerate(parts.layers):
        if layer.kind != "activation" or layer.name not in dict(network.named_modules()):
            continue
        folds, module = parts.folds.of(index), network.get_submodule(layer.name)
        for share in (0.0, 0.3, 1.0):
            points = (1 - share) * folds.ends[:, 0] + share * folds.ends[:, 1]
            values = recorded(network, type(module), slice_.inputs(points))[module][0].flatten(1)
            at_folds = values.gather(1, torch.from_numpy(folds.unit)[:, None])
            assert at_folds.abs().max() < 1e-9 * max(1.0, float(values.abs().max()))


def test_folds_hold_every_sign_change_along_a_line(case):
    network, slice_, parts = case
    if not isinstance(network, nn.Sequential) or isinstance(network[0], nn.Conv2d):
        pytest.skip("the signs are read off the modules of a fully connected network")
    line = np.stack([np.linspace(-0.999, 0.999, 4001), np.full(4001, 0.137)], 1)
    changes = (np.diff(states(network, slice_, line), axis=0) != 0).sum()
    across = (parts.folds.ends[:, 0, 1] > 0.137) != (parts.folds.ends[:, 1, 1] > 0.137)
    share = (0.137 - parts.folds.ends[:, 0, 1]) / np.diff(parts.folds.ends[..., 1], axis=1)[:, 0]
    where = parts.folds.ends[:, 0, 0] + share * np.diff(parts.folds.ends[..., 0], axis=1)[:, 0]
    assert changes == (across & (np.abs(where) < 0.999)).sum()


def test_zero_set_along_an_earlier_fold_is_recorded_once():
    network = nn.Sequential(*arrangement([[1.0, 0.0]], [0.2]), nn.Linear(1, 1), nn.LeakyReLU(0.1))
    network.double()
    with torch.no_grad():
        network[2].weight.fill_(1.0)
        network[2].bias.zero_()
    parts = partition(network, plane())
    assert len(parts.regions) == 2
    assert parts.folds.of(1).ends[..., 0] == pytest.approx(0.2)
    assert parts.folds.of(1).lengths().sum() == pytest.approx(2.0)


def test_maximum_of_three_has_three_cells_that_meet_in_a_point():
    network = nn.Sequential(
        nn.Linear(2, 3), nn.Unflatten(1, (1, 1, 3)), nn.MaxPool2d((1, 3)), nn.Flatten()
    )
    with pytest.raises(UserError, match="Unflatten"):
        partition(network, plane())

    def maximum(self, x):
        return self.pool(self.linear(x).view(x.size(0), 1, 1, 3)).flatten(1)

    network = Composed(maximum, linear=nn.Linear(2, 3).double(), pool=nn.MaxPool2d((1, 3)))
    with torch.no_grad():
        network.linear.weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]]))
        network.linear.bias.zero_()
    parts = partition(network, plane())
    assert len(parts.regions) == 3
    assert parts.regions.areas().sum() == pytest.approx(4.0)
    assert len(parts.folds) == 3
    nearest = np.abs(parts.folds.ends).sum(2).min(1)
    assert nearest == pytest.approx(0.0, abs=1e-12)  # every boundary ends at the origin


class Pooled(nn.Module):
    """A maximum of values of a linear layer."""

    def __init__(self, weights, pool):
        super().__init__()
        self.linear, self.pool = nn.Linear(2, len(weights), bias=False).double(), pool
        with torch.no_grad():
            self.linear.weight.copy_(torch.tensor(weights))

    def forward(self, x):
        return self.pool(self.linear(x).view(x.size(0), 1, -1)).flatten(1)


@pytest.mark.parametrize(
    ("weights", "pool"),
    [
        ([[1.0, 0.0], [-1.0, 0.0]], nn.MaxPool1d(2)),
        ([[1.0, 0.0], [-1.0, 0.0]], nn.MaxPool1d(3, 3, padding=1)),  # repeats the first value
        ([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]], nn.MaxPool1d(3)),  # all equal on the line
        ([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]], nn.MaxPool1d(3)),
    ],
)
def test_pooling_records_a_fold_once(weights, pool):
    parts = partition(Pooled(weights, pool), plane())
    assert len(parts.regions) == 2
    assert len(parts.folds) == 1
    assert parts.folds.lengths() == pytest.approx([2.0])


def test_points_on_common_edges_and_on_the_window_are_located():
    parts = partition(random_network(20, 2), plane())
    for points in (parts.folds.ends.reshape(-1, 2), 2.0 * SQUARE / 2.0):
        assert (parts.regions.locate(points) >= 0).all()
    assert (parts.regions.locate(SQUARE * 1.0001) == -1).all()


@pytest.mark.parametrize("side", [1.0, 1e-4, 3e-8, 1e-9])
def test_zero_set_in_a_small_window_away_from_the_origin(side):
    network = nn.Linear(2, 1).double()
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[0.6, 0.8]], dtype=torch.float64))
        network.bias.fill_(-140.0)
    (segment,) = partition(network, plane(100 + side / 2 * SQUARE)).zero_set(0)
    assert np.hypot(*np.diff(segment, axis=0)[0]) == pytest.approx(1.25 * side, rel=1e-3)


def test_torchvision_residual_network_is_partitioned(digits):
    torch.manual_seed(0)
    block = torchvision.models.resnet.BasicBlock(4, 4)
    network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), block)
    network.double().eval()
    images = embedded_images(digits, 20)
    set_statistics(network, images)
    slice_ = slice_of(images[:3], 0.05 * SQUARE)
    parts = partition(network, slice_)
    assert len(parts.regions) > 10
    assert [layer.name for layer in parts.layers] == ["2", "3.relu", "3.relu"]
    points = grid(slice_, 8) * 0.9
    maps = parts.regions.maps[parts.regions.locate(points)]
    assert at(maps, points) == pytest.approx(outputs(network, slice_, points), abs=1e-11)


def test_one_number_per_input_is_an_output():
    class Mean(nn.Sequential):
        def forward(self, x):
            return super().forward(x).mean(1)

    network = random_network(10, 2)
    parts, single = (partition(kind(*network), plane()) for kind in (nn.Sequential, Mean))
    assert len(parts.regions) == len(single.regions)
    assert np.allclose(parts.regions.maps[:, 0], single.regions.maps.reshape(-1, 3), atol=1e-12)
