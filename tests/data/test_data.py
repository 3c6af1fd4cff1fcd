"""Data sets: their sizes, moments, batches and crops, the same for every layout."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from image_sets import pixels, refused, tree
from PIL import Image

from bnrecon.data import DATASETS, DataSpec, load, register_data
from bnrecon.data.batches import EpochPosition
from bnrecon.data.imagenette import CLASSES as IMAGENETTE
from bnrecon.data.in_memory import InMemoryImages, from_arrays
from bnrecon.data.small_images import CIFAR10_CLASSES
from bnrecon.data.spec import DATASET_NAMES, default_root
from bnrecon.data.streaming import StreamedImages

CPU = torch.device("cpu")


def test_downloads_go_to_the_environments_folder_or_home(monkeypatch, no_home):
    monkeypatch.setenv("BNRECON_DATA", "images")
    assert default_root() == Path("images")
    monkeypatch.delenv("BNRECON_DATA")
    refused(DataSpec("cifar10"), r"^you have no home folder .*; give root=FOLDER, or set")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert default_root() == Path("cache/bnrecon/data")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_root() == Path("/home/somebody/.cache/bnrecon/data")


def test_digits_are_embedded_and_constant(digits):
    assert digits.sizes == (1437, 360)
    assert digits.shape == (1, 8, 8)
    assert digits.train_x.dtype == torch.uint8
    assert digits.train_x.max() == 255
    assert torch.bincount(digits.test_y).min() >= 34
    assert digits.checksum()[:12] == "aa7e9cc0169d"  # scikit-learn 1.9's load_digits


# Channel means and deviations as published with the data sets.
PUBLISHED = {
    "cifar10": ([0.49140, 0.48216, 0.44653], [0.24703, 0.24349, 0.26159]),
    "cifar100": ([0.50708, 0.48655, 0.44092], [0.26733, 0.25644, 0.27615]),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_real_cifar_has_the_published_moments(name):
    if f"BNRECON_{name.upper()}" not in os.environ:
        pytest.skip(f"BNRECON_{name.upper()} names no folder with the real data set")
    data = load(DataSpec(name, os.environ[f"BNRECON_{name.upper()}"]))
    mean, deviation = data.moments()
    assert torch.allclose(mean, torch.tensor(PUBLISHED[name][0]), atol=1e-5)
    assert torch.allclose(deviation, torch.tensor(PUBLISHED[name][1]), atol=1e-5)
    assert data.sizes == (50_000, 10_000)


def test_moments_are_exact(digits):
    mean, deviation = digits.moments()
    scaled = digits.train_x.double() / 255
    assert mean.item() == pytest.approx(scaled.mean().item(), rel=1e-6)
    assert deviation.item() == pytest.approx(scaled.std(correction=0).item(), rel=1e-6)


def test_crops_and_flips_only_move_pixels(tmp_path):
    data = load(DataSpec("folder", str(tree(tmp_path, train=1)), crop_padding=2, flip=True))
    mean, deviation = data.moments()
    originals = torch.nn.functional.pad(data.train_x, (0, 0, 2, 2, 2, 2)).permute(0, 3, 1, 2)
    seen = set()
    for epoch in range(20):
        for x, y in data.train_batches(EpochPosition(2, 0, epoch), CPU):
            pixels = (
                ((x * deviation[:, None, None] + mean[:, None, None]) * 255).round().to(torch.uint8)
            )
            for image, label in zip(pixels, y, strict=True):
                matches = [
                    (dy, dx, flip)
                    for dy in range(5)
                    for dx in range(5)
                    for flip in (False, True)
                    for original, wanted in zip(originals, data.train_y, strict=True)
                    if wanted == label
                    and torch.equal(
                        image.flip(2) if flip else image, original[:, dy : dy + 8, dx : dx + 8]
                    )
                ]
                assert matches
                seen.add(matches[0])
    assert len(seen) > 15


@pytest.mark.parametrize("flip", [True, False])
def test_every_crop_is_drawn_and_half_of_them_mirrored(flip):
    image, labels = torch.arange(64, dtype=torch.uint8).reshape(1, 8, 8, 1), torch.zeros(2000)
    images = image.repeat(2000, 1, 1, 1), labels, image, labels[:1]
    data = InMemoryImages("made", ("one",), *images, crop_padding=2, flip=flip)
    [(x, _)] = data.train_batches(EpochPosition(2000, 0, 0), CPU)
    mean, deviation = data.moments()
    pixels = ((x[:, 0] * deviation + mean) * 255).round().long()
    inside, beside = pixels[:, 3, 3], pixels[:, 3, 4]  # never padding
    mirrored = beside < inside
    assert float(mirrored.double().mean()) == pytest.approx(0.5 * flip, abs=0.05)
    row, column = inside // 8 - 1, inside % 8 - torch.where(mirrored, 2, 1)
    counts = torch.bincount(5 * row + column, minlength=25)
    assert len(counts) == 25
    assert counts.min() > 40  # of 80 on average


def test_no_two_epochs_of_any_seed_have_the_same_order():
    numbers = {EpochPosition(4, seed, epoch).number for seed in range(3) for epoch in range(205)}
    assert len(numbers) == 3 * 205


def test_streamed_images_are_cropped_at_the_centre_and_half_of_them_mirrored(tmp_path):
    """A picture of 80 x 80 pixels that gets brighter from left to right."""
    ramp = np.tile(np.arange(0, 240, 3, dtype=np.uint8), (80, 1))
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    files = [(tmp_path / "ramp.png", 0)] * 100
    data = StreamedImages("made", ("one",), files, files[:1], side=56, workers=0)
    [(plain, _)] = data.test_batches(1, CPU)
    edges = 255 * (plain[0, 0, 28, [0, -1]] * 0.229 + 0.485)
    assert edges.tolist() == pytest.approx([14.6, 222.4], abs=1)  # columns 4 and 59 of 64
    [(x, _)] = data.train_batches(EpochPosition(100, 0, 0), CPU)
    mirrored = x[:, 0, :, 0].mean(1) > x[:, 0, :, -1].mean(1)
    assert 0.35 < float(mirrored.double().mean()) < 0.65


def test_limits_sample_all_classes():
    data = load(DataSpec("digits", train_limit=200, test_limit=50))
    assert data.sizes == (200, 50)
    assert torch.bincount(data.train_y, minlength=10).min() > 5


def test_imagenet_calls_its_test_images_val(tmp_path):
    data = load(_imagenet(tmp_path))
    assert data.shape == (3, 32, 32)
    assert data.sizes == (12, 6)
    assert len(data.checksum()) == 64
    shutil.rmtree(tmp_path / "val")
    line = r"val is missing; .* train/<class>/\* and val/<class>/\*"
    refused(DataSpec("imagenet", str(tmp_path)), line)


@pytest.mark.parametrize("crop_padding", [8, 10**12])
def test_crop_that_could_miss_the_image_is_refused(tmp_path, crop_padding):
    spec = DataSpec("folder", str(tree(tmp_path)), crop_padding=crop_padding)
    refused(spec, f"^crop_padding={crop_padding}: must be below 8 for images of 8x8")


NAMES = {
    "cifar10": CIFAR10_CLASSES,
    "cifar100": [f"class {n}" for n in range(100)],
    "svhn": "0123456789",
    "imagenette": list(IMAGENETTE),
}


def _named_tree(root, name, side=32):
    tree(root / name, NAMES[name], train=1, test=1, side=side)
    return DataSpec(name, str(root))


def _imagenet(root):
    tree(root, side=40, tests="val")
    return DataSpec("imagenet", str(root), side=32, workers=0)


def _registered(_root):
    """Items like those of Hugging Face's data sets, with unnamed classes."""
    rng = np.random.default_rng(0)
    images = [Image.fromarray(pixels) for pixels in rng.integers(0, 256, (16, 8, 8), np.uint8)]
    items = [{"image": image, "label": i % 2} for i, image in enumerate(images)]
    register_data("registered")(lambda spec: (items[:10], items[10:]))
    return DataSpec("registered")


SMALL = {
    "digits": lambda root: DataSpec("digits"),
    "cifar10": lambda root: _named_tree(root, "cifar10"),
    "cifar100": lambda root: _named_tree(root, "cifar100"),
    "svhn": lambda root: _named_tree(root, "svhn"),
    "folder": lambda root: DataSpec("folder", str(tree(root))),
    "imagenet": _imagenet,
    "imagenette": lambda root: _named_tree(root, "imagenette", side=40),
    "registered": _registered,
}


def test_every_named_data_set_is_registered_and_tested():
    assert tuple(DATASETS) == DATASET_NAMES == tuple(SMALL)[:-1]


@pytest.mark.parametrize("limit", [2, 5, 8, 13, 19, 20, 99])
def test_plain_images_of_a_streamed_set_cover_its_classes(limit):
    """Files are sorted by class, and their number need not be a multiple of the limit."""
    taken = []
    data = SimpleNamespace(
        train_files=[(Path(str(number)), number // 10) for number in range(20)],
        _plain_batches=lambda files, _size, _device: taken.extend(files) or (),
    )
    list(StreamedImages.plain_train_batches(data, 4, CPU, limit))
    counts = [sum(label == kind for _, label in taken) for kind in (0, 1)]
    assert sum(counts) == min(limit, 20)
    assert abs(counts[0] - counts[1]) <= 1


@pytest.mark.parametrize("name", SMALL)
def test_every_data_set_gives_batches_of_the_same_form(tmp_path, name):
    data = load(SMALL[name](tmp_path))
    assert data.name == name
    train, test = data.sizes
    batches = list(data.train_batches(EpochPosition(4, 0, 0), CPU))
    assert len(batches) == data.batches(4) == max(1, train // 4)
    for images, labels in [*batches, *data.test_batches(4, CPU)]:
        assert images.shape == (len(labels), *data.shape)
        assert images.dtype == torch.float32
        assert labels.dtype == torch.int64
        assert int(labels.max()) < len(data.classes)
    assert sum(len(labels) for _, labels in data.test_batches(4, CPU)) == test
    assert sum(len(labels) for _, labels in data.test_batches(4, CPU, limit=test - 1)) == test - 1
    assert sum(len(images) for images in data.plain_train_batches(4, CPU, 3)) == 3
    [(resumed, _)] = data.train_batches(EpochPosition(4, 0, 0, len(batches) - 1), CPU)
    assert torch.equal(resumed, batches[-1][0])
    another_epoch = next(data.train_batches(EpochPosition(4, 0, 1), CPU))
    assert not torch.equal(another_epoch[0], batches[0][0])


def test_channel_that_hardly_varies_is_only_shifted(tmp_path):
    """The opacity of opaque images: scaled, its padding would be a million deviations away."""
    images = np.concatenate([pixels(8, 0, side=8), np.full((8, 8, 8, 1), 255, np.uint8)], 3)
    for change in (255, 254):
        images[0, 0, 0, 3] = change
        arrays = {f"{split}_x": images for split in ("train", "test")}
        labels = {f"{split}_y": np.arange(8) % 2 for split in ("train", "test")}
        np.savez(tmp_path / "images.npz", **arrays, **labels)
        data = load(DataSpec("folder", str(tmp_path)))
        assert float(data.moments()[1][3]) == 1
        [(batch, _)] = data.train_batches(EpochPosition(8, 0, 0), CPU)
        assert batch.abs().max() < 5


@pytest.mark.parametrize("limit", [None, 40, 20])
def test_plain_images_cover_the_classes_of_limited_images_too(tmp_path, limit):
    root = str(tree(tmp_path, "abcd", train=10, tests="val"))
    data = load(DataSpec("imagenet", root, side=8, workers=0, train_limit=limit))
    labels = dict(data.train_files)
    seen = []
    data._plain_batches = lambda files, _size, _device: seen.extend(files) or ()
    list(data.plain_train_batches(4, CPU, 4))
    assert sorted(labels[path] for path, _ in seen) == [0, 1, 2, 3]


def test_order_of_identical_images_does_not_depend_on_the_layout():
    images = np.repeat(pixels(6, 0), 2, 0)
    labels = np.arange(12)
    orders = []
    for order in (np.arange(12), np.arange(12)[::-1]):
        split = images[order], labels[order]
        orders.append(from_arrays(DataSpec("cifar100"), [str(i) for i in range(12)], split, split))
    assert orders[0].checksum() == orders[1].checksum()


def test_real_cifar100_has_the_checksum_of_stored_results():
    """It has identical images with different labels."""
    if "BNRECON_CIFAR100" not in os.environ:
        pytest.skip("BNRECON_CIFAR100 names no folder with the real data set")
    data = load(DataSpec("cifar100", os.environ["BNRECON_CIFAR100"]))
    assert data.checksum().startswith("8db89b1121ba")


def test_home_folder_of_the_environment_is_expanded(monkeypatch):
    monkeypatch.setenv("BNRECON_DATA", "~/images")
    assert default_root() == Path.home() / "images"
