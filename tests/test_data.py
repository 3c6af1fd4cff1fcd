"""Data sets: the same pixels whichever way they lie, and one clear line for everything that can be wrong with them."""

import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bnrecon.data import DataSpec, load
from bnrecon.errors import UserError

CPU = torch.device("cpu")


def tree(root, classes=("ant", "bee"), train=6, test=3, side=8, seed=0):
    """A small image tree of random pictures; returns its root."""
    generator = np.random.default_rng(seed)
    for split, count in (("train", train), ("test", test)):
        for name in classes:
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 256, (side, side, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / split / name / f"{number}.png")
    return root


def archive(root, data, name="cifar10"):
    np.savez(
        root / f"{name}.npz", train_x=data.train_x.numpy(), train_y=data.train_y.numpy(), test_x=data.test_x.numpy(),
        test_y=data.test_y.numpy(), classes=list(data.classes),
    )  # fmt: skip


def test_digits_are_embedded_and_always_the_same(digits):
    assert digits.sizes == (1437, 360)
    assert digits.shape == (1, 8, 8)
    assert digits.train_x.dtype == torch.uint8
    assert digits.train_x.max() == 255
    assert torch.bincount(digits.test_y).min() >= 34
    assert digits.checksum()[:12] == "aa7e9cc0169d"  # scikit-learn 1.9's load_digits


def test_a_folder_tree_is_read(tmp_path):
    data = load(DataSpec("folder", str(tree(tmp_path))))
    assert data.classes == ("ant", "bee")
    assert data.sizes == (12, 6)
    assert data.shape == (3, 8, 8)


def test_order_on_disk_does_not_matter(tmp_path):
    tree(tmp_path / "a")
    first = load(DataSpec("folder", str(tmp_path / "a")))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    names = sorted((tmp_path / "b" / "train" / "ant").iterdir())
    for number, file in enumerate(names):
        file.rename(file.with_name(f"z{len(names) - number}.png"))
    assert load(DataSpec("folder", str(tmp_path / "b"))).checksum() == first.checksum()


def test_cifar_is_accepted_as_a_tree_and_as_an_archive_with_the_same_pixels(tmp_path):
    classes = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    data = load(DataSpec("cifar10", str(tree(tmp_path / "cifar10", classes, train=2, test=1, side=32).parent)))
    assert data.classes == classes
    (tmp_path / "npz").mkdir()
    archive(tmp_path / "npz", data)
    assert load(DataSpec("cifar10", str(tmp_path / "npz"))).checksum() == data.checksum()


# Channel means and deviations as published with the data sets.
PUBLISHED = {
    "cifar10": ([0.49140, 0.48216, 0.44653], [0.24703, 0.24349, 0.26159]),
    "cifar100": ([0.50708, 0.48655, 0.44092], [0.26733, 0.25644, 0.27615]),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_real_cifar_has_the_published_moments(name):
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


def test_batches_are_normalized_channels_last_and_cover_every_image_once(digits):
    batches = list(digits.train_batches(64, seed=0, epoch=0, device=CPU))
    assert len(batches) == 22 == digits.batches(64)
    x, y = batches[0]
    assert x.shape == (64, 1, 8, 8)
    assert y.shape == (64,)
    total = torch.cat([y for _, y in batches])
    assert (torch.bincount(total) <= torch.bincount(digits.train_y)).all()


def test_an_epoch_taken_up_in_its_middle_goes_on_as_it_would_have(digits):
    whole = list(digits.train_batches(64, 3, 5, CPU))
    rest = list(digits.train_batches(64, 3, 5, CPU, start=15))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(whole[15:], rest, strict=True))
    other = next(iter(digits.train_batches(64, 3, 6, CPU)))
    assert not torch.equal(other[0], whole[0][0])


def test_crops_and_flips_move_pixels_and_nothing_else(tmp_path):
    data = load(DataSpec("folder", str(tree(tmp_path, train=1)), crop_padding=2, flip=True))
    mean, deviation = data.moments()
    originals = torch.nn.functional.pad(data.train_x, (0, 0, 2, 2, 2, 2)).permute(0, 3, 1, 2)
    seen = set()
    for epoch in range(20):
        for x, y in data.train_batches(2, 0, epoch, CPU):
            pixels = ((x * deviation[:, None, None] + mean[:, None, None]) * 255).round().to(torch.uint8)
            for image, label in zip(pixels, y, strict=True):
                places = [
                    (dy, dx, flip) for dy in range(5) for dx in range(5) for flip in (False, True)
                    for original, wanted in zip(originals, data.train_y, strict=True)
                    if wanted == label
                    and torch.equal(image.flip(2) if flip else image, original[:, dy : dy + 8, dx : dx + 8])
                ]  # fmt: skip
                assert places
                seen.add(places[0])
    assert len(seen) > 15


def test_limits_take_a_sample_of_all_classes():
    data = load(DataSpec("digits", train_limit=200, test_limit=50))
    assert data.sizes == (200, 50)
    assert torch.bincount(data.train_y, minlength=10).min() > 5


def test_images_of_several_sizes_need_a_side(tmp_path):
    tree(tmp_path)
    Image.fromarray(np.zeros((5, 9, 3), np.uint8)).save(tmp_path / "train" / "ant" / "0.png")
    with pytest.raises(UserError, match=r"data\.side=32"):
        load(DataSpec("folder", str(tmp_path)))
    assert load(DataSpec("folder", str(tmp_path), side=16)).shape == (3, 16, 16)


def test_a_broken_image_of_a_streamed_set_is_one_line_from_a_worker_too(tmp_path):
    tree(tmp_path, side=40)
    (tmp_path / "train" / "bee" / "3.png").write_bytes(b"rubbish")
    data = load(DataSpec("imagenet", str(tmp_path), side=32, workers=1))
    with pytest.raises(UserError, match=r"3\.png is not a readable image") as raised:
        list(data.train_batches(4, 0, 1, CPU))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"train_y": np.array([0, 1])}, r"train_y is .*\(10,\)"), ({"test_y": np.full(10, 10)}, "runs from 10 to 10"),
        ({"test_x": np.zeros((10, 8, 8, 3), np.uint8)}, r"must be \(N, 32, 32, 3\)"), ({"classes": ["a", "b"]}, "not those of cifar10"),
        ({"train_x": np.zeros((10, 32, 32, 3), np.float32)}, "must be uint8"),
    ],
)  # fmt: skip
def test_a_wrong_archive_is_one_line(tmp_path, change, line):
    from bnrecon.data.load import CIFAR10_CLASSES

    pixels = np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
    good = {"train_x": pixels, "train_y": np.arange(10), "test_x": pixels, "test_y": np.arange(10), "classes": CIFAR10_CLASSES}
    np.savez(tmp_path / "cifar10.npz", **(good | change))
    with pytest.raises(UserError, match=line):
        load(DataSpec("cifar10", str(tmp_path)))


def test_imagenet_streams_the_same_crops_in_the_same_order(tmp_path):
    tree(tmp_path, side=40)
    (tmp_path / "test").rename(tmp_path / "val")
    data = load(DataSpec("imagenet", str(tmp_path), side=32, workers=0))
    assert data.shape == (3, 32, 32)
    first, again = (list(data.train_batches(4, 0, 1, CPU)) for _ in range(2))
    assert len(first) == 3
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    rest = list(data.train_batches(4, 0, 1, CPU, start=2))
    assert torch.equal(rest[0][0], first[2][0])
    assert sum(len(y) for _, y in data.test_batches(4, CPU)) == 6
    assert len(data.checksum()) == 64


def problem(tmp_path, what):
    root = tree(tmp_path)
    if what == "no split":
        shutil.rmtree(root / "test")
    elif what == "missing class":
        shutil.rmtree(root / "test" / "bee")
    elif what == "empty class":
        for file in (root / "train" / "bee").iterdir():
            file.unlink()
    elif what == "empty image":
        (root / "train" / "bee" / "0.png").write_bytes(b"")
    elif what == "unreadable image":
        (root / "train" / "bee" / "0.png").write_bytes(b"not a picture")
    elif what == "cut image":
        file = root / "train" / "bee" / "0.png"
        file.write_bytes(file.read_bytes()[:60])
    return root


@pytest.mark.parametrize(
    ("what", "line"),
    [
        ("no split", r"test is missing; data\.root must hold"), ("missing class", r"test: the class folders .*\(missing bee\)"),
        ("empty class", r"train/bee holds no images"), ("empty image", r"train/bee/0\.png is empty; replace or remove"),
        ("unreadable image", r"0\.png is not a readable image"), ("cut image", r"0\.png is not a readable image"),
    ],
)  # fmt: skip
def test_a_broken_tree_is_one_line_that_says_what_and_where(tmp_path, what, line):
    with pytest.raises(UserError, match=line) as raised:
        load(DataSpec("folder", str(problem(tmp_path, what))))
    assert "\n" not in str(raised.value)


def test_missing_and_damaged_cifar_is_one_line(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no such folder"):
        load(DataSpec("cifar10", str(tmp_path / "nowhere")))
    with pytest.raises(UserError, match=r"is missing .*give data\.root"):
        load(DataSpec("cifar10", str(tmp_path), download=False))

    def refuse(*_, **__):
        raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    with pytest.raises(UserError, match=r"could not be downloaded .*give data\.root"):
        load(DataSpec("cifar10", str(tmp_path)))
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(b"rubbish")
    with pytest.raises(UserError, match="missing or damaged"):
        load(DataSpec("cifar10", str(tmp_path), download=False))
    (tmp_path / "cifar100.npz").write_bytes(b"PK rubbish")
    with pytest.raises(UserError, match=r"cifar100\.npz is damaged"):
        load(DataSpec("cifar100", str(tmp_path)))
    wrong = tree(tmp_path / "wrong")
    with pytest.raises(UserError, match="has 100"):
        load(DataSpec("cifar100", str(wrong)))


def test_files_at_hand_are_read_without_a_download_or_a_lock(tmp_path, monkeypatch):
    from torchvision import datasets

    class AtHand:
        base_folder = "cifar-10-batches-py"
        classes = tuple("0123456789")

        def __init__(self, root, train, download=False):
            assert not download
            self.data, self.targets = np.full((10, 32, 32, 3), int(train), np.uint8), list(range(10))

    monkeypatch.setattr(datasets, "CIFAR10", AtHand)
    assert load(DataSpec("cifar10", str(tmp_path))).sizes == (10, 10)
    assert not list(tmp_path.iterdir())


def test_an_archive_with_a_pickle_in_it_is_refused(tmp_path):
    class Bomb:
        def __reduce__(self):
            return Path.touch, (tmp_path / "exploded",)

    np.savez(tmp_path / "cifar10.npz", classes=np.array([Bomb()], dtype=object), train_x=0, train_y=0, test_x=0, test_y=0)
    with pytest.raises(UserError, match="damaged or not an archive"):
        load(DataSpec("cifar10", str(tmp_path)))
    assert not (tmp_path / "exploded").exists()


def test_an_unknown_data_set_is_named_with_the_nearest():
    with pytest.raises(UserError, match="did you mean 'digits'"):
        load(DataSpec("digit"))
