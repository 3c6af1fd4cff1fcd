"""Figures 3 and 4: counts of folded hyperplanes against closed forms, symmetries and samples."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from networks import recorded

from bnrecon.partition import count_by_local_map, fold_distances
from bnrecon.studies.bn_explained import figure3, figure4
from bnrecon.studies.bn_explained.figure4 import (
    PIXELS,
    RADII,
    REFERENCE,
    TrainingImages,
    draw_points,
    measure_seed,
)
from bnrecon.studies.bn_explained.planar import SETTINGS, draw_layers

# Figure 3


def test_points_lie_on_the_lines_of_a_pentagram():
    points = figure3.draw_star(0) - figure3.CENTRE
    angles = np.pi / 2 + np.pi * (2 * np.arange(5) + 2) / 5
    normals = np.stack([np.cos(angles), np.sin(angles)], 1)
    offsets = np.abs(points @ normals.T - np.cos(2 * np.pi / 5))
    inner = np.cos(2 * np.pi / 5) / np.cos(np.pi / 5)
    assert offsets.min(1).max() < 1e-12
    assert (np.linalg.norm(points, axis=1) >= np.cos(2 * np.pi / 5) - 1e-12).all()
    assert np.linalg.norm(points, axis=1).min() < inner + 0.2
    assert len(np.unique(offsets.argmin(1))) == 5


def test_turned_points_complete_a_square():
    points = figure3.draw_star(1)
    corners = np.stack([points, *figure3.turned(points).reshape(3, -1, 2)])
    np.testing.assert_allclose(corners.sum(0), 0, atol=1e-12)
    norms = np.linalg.norm(corners, axis=2)
    np.testing.assert_allclose(norms, np.broadcast_to(norms[0], norms.shape))


@pytest.mark.parametrize("seed", [0, 1])
def test_zero_bias_counts_scale_with_the_ball(seed):
    """A network without biases is positively homogeneous: d(2 x) = 2 d(x)."""
    points = figure3.draw_star(seed)
    network = draw_layers((20,) * 4, "zero bias", points, seed)
    near = count_by_local_map(network, torch.from_numpy(points), 0.1)
    far = count_by_local_map(network, torch.from_numpy(2 * points), 0.2)
    np.testing.assert_array_equal(near, far)
    origin = count_by_local_map(network, torch.zeros(1, 2).double(), 1e-9)
    np.testing.assert_array_equal(origin, 20)


def test_first_layer_map_counts_distances_to_lines():
    rows = figure3.count_on_grid("random bias", width=40, side=6)
    cells = rows[rows["kind"] == "map"]
    np.testing.assert_allclose(cells[["x", "y"]], figure3.grid(6), atol=1e-4)
    assert np.abs(cells["x"]).max() == pytest.approx(figure3.REACH * 5 / 6, abs=1e-4)
    first = draw_layers((40,), "random bias", figure3.draw_star(0), 0)[0][0]
    weight, bias = first.weight.detach().numpy(), first.bias.detach().numpy()
    distance = np.abs(figure3.grid(6) @ weight.T + bias) / np.linalg.norm(weight, axis=1)
    np.testing.assert_array_equal(cells["layer_1"], (distance <= figure3.RADIUS).sum(1))


def test_counts_at_the_star_match_its_points():
    rows = figure3.count_at_star(width=30, side=8, seed=3).set_index(["setting", "layer"])
    star = figure3.draw_star(3)
    for setting in SETTINGS:
        network = draw_layers((30,) * 11, setting, star, 3)
        counts = count_by_local_map(network, torch.from_numpy(star), figure3.RADIUS)
        for layer in figure3.LAYERS:
            assert rows.loc[(setting, layer), "data"] == counts[:, layer - 1].mean()
    assert (rows.loc["zero bias", "origin"] == 30).all()
    assert (rows.loc["BN", "origin"] < 30).all()


def test_counting_methods_agree_without_folds_and_are_ordered_with_them():
    rows = figure3.compare_counts(width=8, exact=True, points=24)
    first, deep = rows[rows["layer"] == 1], rows[rows["layer"] > 1]
    assert (first["local"] == first["units"]).all()
    assert (first["facets"] == first["units"]).all()
    assert (rows["sampled"] <= rows["units"]).all()  # a sign change needs a zero in the ball
    assert (deep["facets"] >= deep["units"]).all()
    assert deep["facets"].sum() > 1.5 * deep["units"].sum()
    assert first["sampled"].sum() == pytest.approx(first["expected"].sum(), rel=0.1)


def plane_rows(focus, rim):
    """Counts at the data (``focus`` times those at turned data) and the share on the rim."""
    generator = np.random.Generator(np.random.Philox(0))
    rows = []
    for setting in SETTINGS:
        for seed in range(5):
            for layer in figure3.LAYERS:
                noise = 1 + 0.02 * generator.normal()
                row = {"kind": "counts", "setting": setting, "layer": layer, "seed": seed}
                row |= {"width": 10, "turned": 4.0, "data": 4 * noise * focus[setting]}
                row |= {"window": 5.0, "rim": 5 * noise * rim[setting], "centred": 8.0}
                rows.append(row | {"origin": 10.0 if setting == "zero bias" else 1.0})
    return pd.DataFrame(rows)


AS_PRINTED = {"zero bias": 1.0, "random bias": 1.0, "BN": 3.0}
RIM_AS_PRINTED = {"zero bias": 0.5, "random bias": 0.9, "BN": 0.5}


@pytest.mark.parametrize(
    ("focus", "rim", "verdicts"),
    [
        ({}, {}, ["confirmed"] * 3),
        ({"BN": 1.0}, {}, ["contradicted", "confirmed", "confirmed"]),
        ({}, {"random bias": 0.3}, ["confirmed", "contradicted", "confirmed"]),
        ({"zero bias": 2.0}, {}, ["confirmed", "confirmed", "contradicted"]),
    ],
)
def test_figure_3_verdicts_follow_the_rows(focus, rim, verdicts):
    rows = plane_rows(AS_PRINTED | focus, RIM_AS_PRINTED | rim)
    assert [claim.verdict for claim in figure3.PART.claims(rows)] == verdicts
    one = figure3.PART.claims(rows[rows["seed"] == 0])
    assert {claim.verdict for claim in one} == {"undecided"}


# Figure 4


def test_pixels_from_0_to_1_match_the_files(digits):
    batches = TrainingImages(digits, PIXELS[1])
    images = torch.cat(list(batches))
    raw = digits.train_x.permute(0, 3, 1, 2) / 255
    torch.testing.assert_close(images, raw, atol=1e-6, rtol=0)
    assert batches.deviation == pytest.approx(float(raw.std(correction=0)), rel=1e-5)
    assert torch.equal(torch.cat(list(batches)), images)  # iterating again restarts
    normalized = torch.cat(list(TrainingImages(digits, PIXELS[0])))
    assert float(normalized.mean()) == pytest.approx(0, abs=1e-5)
    assert float(normalized.std(correction=0)) == pytest.approx(1, rel=1e-5)


def test_training_images_differ_by_seed_and_come_from_the_training_set(digits):
    training_images = torch.cat(list(TrainingImages(digits, PIXELS[0]))).flatten(1).tolist()
    drawn = [draw_points(digits, "training", 5, seed).flatten(1).tolist() for seed in (0, 1)]
    assert all(image in training_images for image in drawn[0] + drawn[1])
    assert not any(image in drawn[0] for image in drawn[1])


def test_smooth_images_keep_mean_spectrum_and_covariance_only():
    class Colours:
        shape = (3, 8, 8)

        def plain_train_batches(self, size, _device, limit):
            images = torch.randn(limit, *self.shape, generator=torch.Generator().manual_seed(0))
            return iter((images + images.roll(1, 3) + torch.arange(3.0)[:, None, None]).split(size))

    data = Colours()
    before, after = (draw_points(data, kind, 4, 0) for kind in ("training", "smooth"))
    assert after.shape == before.shape
    torch.testing.assert_close(after.mean((2, 3)), before.mean((2, 3)))
    spectra = [torch.fft.fft2(images.double()).abs() for images in (before, after)]
    torch.testing.assert_close(*spectra, atol=1e-4, rtol=1e-4)
    covariances = [torch.stack([torch.cov(x.flatten(1)) for x in part]) for part in (before, after)]
    torch.testing.assert_close(*covariances, atol=1e-4, rtol=1e-4)
    assert (before - after).abs().mean() > 0.5


def test_gaussian_images_have_the_moments_of_the_training_set(digits):
    images = draw_points(digits, "Gaussian", 400, 0)
    assert float(images.mean()) == pytest.approx(0, abs=0.03)
    assert float(images.std()) == pytest.approx(1, abs=0.03)


OPTIONS = ("data=digits", "target=resnet9", "target.width=2")


def test_counts_around_images_match_exact_norms_samples_and_a_closed_form():
    rows = measure_seed(0, PIXELS[0], images=40, probes=16, checked=2, options=OPTIONS)
    curves = rows[(rows["kind"] == "curve") & (rows["layer"] == 0)]
    for _, part in curves.groupby(["setting", "images"]):
        assert list(part["radius"]) == list(RADII)
        assert part["count"].is_monotonic_increasing
        assert (part["count"] <= part["units"]).all()
    layers = rows[(rows["kind"] == "curve") & (rows["layer"] > 0)]
    total = layers.groupby(["setting", "images"])["count"].sum()
    whole = curves[curves["radius"] == REFERENCE].set_index(["setting", "images"])["count"]
    pd.testing.assert_series_equal(total.sort_index(), whole.sort_index())
    # Without bias the first layer's distances from Gaussian images are those of |N(0, 1)| from 0.
    first = layers[(layers["layer"] == 1) & (layers["images"] == "Gaussian")].set_index("setting")
    share = first.loc["zero bias", "count"] / first.loc["zero bias", "units"]
    assert share == pytest.approx(math.erf(REFERENCE / 2**0.5), rel=0.15)
    sampling = rows[rows["kind"] == "sampling"]
    assert sampling["sampled"].sum() == pytest.approx(sampling["expected"].sum(), rel=0.2)
    assert (sampling["expected_many"] <= sampling["exact"]).all()
    probes = rows[rows["kind"] == "probes"]
    assert probes["distance_error"].mean() == pytest.approx((1 / 32) ** 0.5, rel=0.5)
    assert probes["estimated"].sum() == pytest.approx(probes["exact"].sum(), rel=0.2)


def test_bn_filters_are_zero_at_the_mean_training_image():
    network, batches = figure4._prepare("BN", 0, PIXELS[1], OPTIONS)
    images = torch.cat(list(batches))
    _, output = recorded(network, torch.nn.BatchNorm2d, images)[network[0][1]]
    torch.testing.assert_close(output.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    biased, _ = figure4._prepare("random bias", 0, PIXELS[1], OPTIONS)
    assert torch.equal(biased[0][0].weight, network[0][0].weight)
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in biased.modules())
    exact = fold_distances(biased, images[:1])[0][0].reshape(2, 8, 8)[:, 3, 4]
    weight, bias = biased[0][0].weight.double(), biased[0][0].bias.double()
    patch = images[0, :, 2:5, 3:6].double()
    expected = ((weight * patch).sum((1, 2, 3)) + bias).abs() / weight.flatten(1).norm(dim=1)
    torch.testing.assert_close(exact, expected.detach())


def image_rows(counts):
    """Counts at the reference radius by setting and type of image, with 1% noise."""
    generator = np.random.Generator(np.random.Philox(0))
    rows = [
        {"kind": "curve", "layer": 0, "pixels": PIXELS[0], "radius": REFERENCE, "seed": seed}
        | {"setting": setting, "images": kind, "units": 1000, "points": 10, "probes": 16}
        | {"count": counts[setting][index] * (1 + 0.01 * generator.normal())}
        for seed in range(3)
        for setting in SETTINGS
        for index, kind in enumerate(("training", "Gaussian", "smooth"))
    ]
    return pd.DataFrame(rows)


FLAT = (100, 100, 100)
YES, NO = "confirmed", "contradicted"


@pytest.mark.parametrize(
    ("counts", "verdicts"),
    [
        ((FLAT, FLAT, (200, 100, 100)), [YES, YES, YES, YES, YES, YES]),
        ((FLAT, FLAT, (200, 150, 200)), [YES, NO, YES, YES, YES, NO]),
        ((FLAT, FLAT, FLAT), [NO, YES, "undecided", "undecided", YES, NO]),
        (((150, 100, 150), FLAT, (250, 100, 100)), [YES, YES, YES, YES, NO, YES]),
    ],
)
def test_figure_4_verdicts_follow_the_rows(counts, verdicts):
    rows = image_rows(dict(zip(SETTINGS, counts, strict=True)))
    assert [claim.verdict for claim in figure4.PART.claims(rows)] == verdicts
    one = figure4.PART.claims(rows[rows["seed"] == 0])
    assert {claim.verdict for claim in one} == {"undecided"}


def test_ratio_common_to_all_seeds_has_no_uncertainty():
    """The interval is that of a ratio of means, not of differences over a mean."""
    counts = pd.DataFrame({"BN": [20.0, 40, 60], "shuffled": [10.0, 20, 30]})
    ratio = figure3._ratio(counts, "BN", "shuffled")
    assert ratio.mean == pytest.approx(2)
    assert ratio.half_width == pytest.approx(0, abs=1e-12)
