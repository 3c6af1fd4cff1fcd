"""Imagenette: torchvision's folders, downloaded completely or not at all; centre crops."""

import hashlib
import io
import logging
import shutil
import tarfile

import numpy as np
import pytest
import torch
from image_sets import refused
from local_server import answer
from PIL import Image
from torchvision import datasets
from torchvision.transforms import v2

from bnrecon.data import DataSpec, imagenette, load

WNIDS = tuple(datasets.Imagenette._WNID_TO_CLASS)


@pytest.fixture(autouse=True)
def _few_images(monkeypatch):
    monkeypatch.setattr(imagenette, "IMAGES", {"train": 20, "val": 10})


def folders(folder):
    """Two training images and one of ``val`` per class; grey levels tell class and split."""
    for split, count in (("train", 2), ("val", 1)):
        for number, wnid in enumerate(WNIDS):
            (folder / split / wnid).mkdir(parents=True)
            for k in range(count):
                grey = 20 * number + 10 * (split == "val")
                size = (30 + 10 * k, 20 + 7 * number)
                Image.new("L", size, grey).save(folder / split / wnid / f"{wnid}_{k}.JPEG")
    return folder


def spec_of(root, side=None, download=False):
    return DataSpec("imagenette", str(root), side=side, download=download)


@pytest.mark.parametrize("subfolder", ["imagenette2-160", "imagenette2", "imagenette", "."])
def test_classes_and_splits_are_torchvisions(tmp_path, subfolder):
    folders(tmp_path / subfolder)
    data = load(spec_of(tmp_path, 16))
    published = datasets.Imagenette._WNID_TO_CLASS
    assert data.classes == tuple(published[wnid][0] for wnid in sorted(published))
    assert data.sizes == (20, 10)
    assert data.shape == (3, 16, 16)
    for images, labels, base in ((data.train_x, data.train_y, 0), (data.test_x, data.test_y, 10)):
        greys = images.float().mean((1, 2, 3))
        assert torch.allclose(greys, 20.0 * labels + base, atol=2)


@pytest.mark.parametrize("size", [(96, 64), (64, 128)])
def test_shorter_side_is_resized_and_the_centre_cropped(tmp_path, size):
    folders(tmp_path)
    generator = np.random.default_rng(0)
    coarse = Image.fromarray(generator.integers(0, 256, (6, 9, 3), dtype=np.uint8))
    picture = coarse.resize(size, Image.Resampling.BICUBIC)
    for file in tmp_path.glob("*/*/*.JPEG"):
        file.unlink()
        picture.save(file.with_suffix(".png"))
    data = load(spec_of(tmp_path, 32))
    loaded = data.test_x[0].numpy().astype(int)
    expected = np.asarray(v2.Compose([v2.Resize(32), v2.CenterCrop(32)])(picture))
    assert abs(loaded - expected).max() <= 1
    assert abs(loaded - np.asarray(picture.resize((32, 32)))).mean() > 20


def test_smallest_size_that_needs_no_enlarging_is_read(tmp_path, caplog):
    folders(tmp_path / "imagenette2-160")
    line = "^imagenette is not in .*imagenette2-320 or imagenette2, or allow"
    refused(spec_of(tmp_path, side=161), line)
    folders(tmp_path / "imagenette2")
    for file in (tmp_path / "imagenette2").glob("*/*/*.JPEG"):
        Image.new("L", (30, 30), 255).save(file)
    caplog.set_level(logging.INFO, "bnrecon")
    small, large = (load(spec_of(tmp_path, side)) for side in (160, 161))
    assert small.train_x.max() < 200
    assert large.train_x.min() == 255
    assert [record.getMessage() for record in caplog.records] == [
        f"imagenette is read from {tmp_path}/imagenette2; there is no imagenette2-320"
    ]


MISSING = {
    "no folder": ("train", 0),
    "no class": ("train/*", 0),
    "a class without images": (f"train/{WNIDS[-1]}/*", 18),
    "one image less": (f"train/{WNIDS[3]}/*_0.JPEG", 19),
    "no test images": ("val", 0),
}


@pytest.mark.parametrize("download", [False, True])
@pytest.mark.parametrize("missing", MISSING)
def test_incomplete_published_folder_is_refused(tmp_path, missing, download):
    folder, (gone, held) = folders(tmp_path / "imagenette2-160"), MISSING[missing]
    for path in list(folder.glob(gone)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    expected = "val holds 0 of 10" if gone == "val" else f"train holds {held} of 20"
    line = (
        rf"imagenette2-160/{expected} images; remove imagenette2-160 and allow download=true, or "
    )
    refused(spec_of(tmp_path, download=download), line)


def published(root, monkeypatch, serve, damage=lambda content: content):
    """Let torchvision download small folders from a server on this machine."""
    folders(root / "imagenette2-160")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(root / "imagenette2-160", "imagenette2-160")
    content = archive.getvalue()
    address = serve(answer(damage(content)))
    checksum = hashlib.md5(content).hexdigest()
    entry = (f"{address}/imagenette2-160.tgz", checksum)
    monkeypatch.setitem(datasets.Imagenette._ARCHIVES, "160px", entry)


def test_torchvision_downloads_it(tmp_path, monkeypatch, serve):
    published(tmp_path / "published", monkeypatch, serve)
    mine = tmp_path / "mine"
    mine.mkdir()
    first = load(spec_of(mine, 16, download=True))
    assert first.sizes == (20, 10)
    kept = [path.name for path in mine.iterdir() if path.is_dir() or path.suffix == ".tgz"]
    assert kept == ["imagenette2-160"]
    again = load(spec_of(mine, 16))
    assert again.checksum() == first.checksum()


def test_damaged_download_leaves_nothing_behind(tmp_path, monkeypatch, serve):
    published(tmp_path / "published", monkeypatch, serve, lambda content: content[:500])
    mine = tmp_path / "mine"
    mine.mkdir()
    line = r"^imagenette is not in .* could not be downloaded from https://github.com/fastai/"
    refused(spec_of(mine, download=True), rf"{line}imagenette \(.+\); give root=FOLDER")
    assert not [path for path in mine.iterdir() if path.is_dir()]
