"""SVHN: MATLAB files, archives and trees give the same images; damage is named."""

import hashlib
import pickle

import numpy as np
import pytest
import torch
from image_sets import Bomb, pixels, refused
from local_server import answer
from PIL import Image
from scipy.io import savemat
from torchvision import datasets

from bnrecon.config import composition
from bnrecon.data import DataSpec, load
from bnrecon.data.batches import EpochPosition

LABELS = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1])
PIXELS = {"train": pixels(12, 1), "test": pixels(12, 0)}


def torchvision_files(root, monkeypatch):
    """Write torchvision's files with the checksums it expects; return their contents."""
    root.mkdir(exist_ok=True)
    expected = {}
    for split in ("train", "test"):
        path = root / f"{split}_32x32.mat"
        labels = np.where(LABELS == 0, 10, LABELS).astype(np.uint8)[:, None]
        savemat(path, {"X": PIXELS[split].transpose(1, 2, 3, 0), "y": labels})
        address, checksum = "http://127.0.0.1:9", hashlib.md5(path.read_bytes()).hexdigest()
        expected[split] = [f"{address}/{path.name}", path.name, checksum]
    monkeypatch.setattr(datasets.SVHN, "split_list", expected)
    return {path.name: path.read_bytes() for path in root.iterdir()}


def lay_out(root, layout, monkeypatch):
    if layout == "torchvision":
        torchvision_files(root, monkeypatch)
    elif layout == "archive":
        arrays = {f"{split}_x": PIXELS[split] for split in ("train", "test")}
        arrays |= {f"{split}_y": LABELS for split in ("train", "test")}
        np.savez(root / "svhn.npz", classes=list("0123456789"), **arrays)
    else:
        for split in ("train", "test"):
            for number, (picture, label) in enumerate(zip(PIXELS[split], LABELS, strict=True)):
                folder = (root / "svhn" if layout == "tree" else root) / split / str(label)
                folder.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture).save(folder / f"{number}.png")


@pytest.mark.parametrize("layout", ["torchvision", "archive", "tree", "bare tree"])
def test_every_layout_holds_the_same_images_and_label_10_is_0(tmp_path, monkeypatch, layout):
    lay_out(tmp_path, layout, monkeypatch)
    data = load(DataSpec("svhn", str(tmp_path), download=False))
    assert data.classes == tuple("0123456789")
    assert data.shape == (3, 32, 32)
    splits = (("train", data.train_x, data.train_y), ("test", data.test_x, data.test_y))
    for split, images, labels in splits:
        loaded = {bytes(x.numpy()): int(y) for x, y in zip(images, labels, strict=True)}
        written = zip(PIXELS[split], LABELS, strict=True)
        assert loaded == {picture.tobytes(): label for picture, label in written}


def test_svhn_and_a_tree_of_cifar_share_a_folder(tmp_path, monkeypatch):
    for split in ("train", "test"):
        (tmp_path / split / "airplane").mkdir(parents=True)
    torchvision_files(tmp_path / "files", monkeypatch)
    for file in (tmp_path / "files").iterdir():
        file.rename(tmp_path / file.name)
    assert load(DataSpec("svhn", str(tmp_path), download=False)).sizes == (12, 12)


@pytest.mark.parametrize("name", ["train_32x32.mat", "test_32x32.mat"])
def test_damaged_file_is_neither_read_nor_unpickled(tmp_path, monkeypatch, name):
    files = torchvision_files(tmp_path, monkeypatch)
    flipped = files[name][:1000] + bytes([files[name][1000] ^ 1]) + files[name][1001:]
    spec = DataSpec("svhn", str(tmp_path), download=False)
    for content in (b"", files[name][:1000], flipped, pickle.dumps(Bomb(tmp_path))):
        (tmp_path / name).write_bytes(content)
        refused(spec, r"test_32x32\.mat is not complete, or damaged \(by its files' checksums")
    assert not (tmp_path / "exploded").exists()


def test_download_replaces_missing_and_damaged_files(tmp_path, monkeypatch, serve):
    files = torchvision_files(tmp_path / "published", monkeypatch)
    for about in datasets.SVHN.split_list.values():
        about[0] = f"{serve(answer(files[about[1]]))}/{about[1]}"
    mine = tmp_path / "mine"
    mine.mkdir()
    for damaged in (None, "train_32x32.mat", "test_32x32.mat"):
        if damaged:
            (mine / damaged).write_bytes(b"rubbish")
        assert load(DataSpec("svhn", str(mine))).sizes == (12, 12)
        assert {name: (mine / name).read_bytes() for name in files} == files


def test_house_numbers_are_not_mirrored_by_default(tmp_path, monkeypatch):
    torchvision_files(tmp_path, monkeypatch)
    spec = composition.compose(["data=svhn", f"data.root={tmp_path}", "data.crop_padding=0"]).data
    data = load(spec)
    whole = {bytes(image.numpy()) for image in data.train_x}
    mean, deviation = (moment[:, None, None] for moment in data.moments())
    for epoch in range(5):
        for images, _ in data.train_batches(EpochPosition(12, 0, epoch), torch.device("cpu")):
            seen = ((images * deviation + mean) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
            assert {image.contiguous().numpy().tobytes() for image in seen} == whole
