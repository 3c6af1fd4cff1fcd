"""CIFAR: archives, torchvision's files and trees; downloads and damage."""

import hashlib
import io
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from image_sets import Bomb, pixels, refused, write_cifar
from local_server import answer
from PIL import Image
from torchvision import datasets

from bnrecon.data import DataSpec, load
from bnrecon.data import tree as tree_module
from bnrecon.data.small_images import CIFAR10_CLASSES

HUNDRED = tuple(f"c{number:02}" for number in range(100))
KINDS = {"cifar10": (datasets.CIFAR10, CIFAR10_CLASSES), "cifar100": (datasets.CIFAR100, HUNDRED)}


def torchvision_files(root, monkeypatch, name):
    """Write a small CIFAR as torchvision's files and expected checksums; return their archive."""
    kind, classes = KINDS[name]
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    labels = "labels" if name == "cifar10" else "fine_labels"

    def write(file, content):
        (folder / file).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / file).read_bytes()).hexdigest()

    for split in ("train", "test"):
        x = pixels(len(classes), split == "train").transpose(0, 3, 1, 2).reshape(-1, 3072)
        checksum = write(split, {"data": x, labels: list(range(len(classes)))})
        monkeypatch.setattr(kind, f"{split}_list", [[split, checksum]])
    monkeypatch.setattr(
        kind,
        "meta",
        {"filename": "meta", "key": "names", "md5": write("meta", {"names": list(classes)})},
    )
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        tar.add(folder, kind.base_folder)
    monkeypatch.setattr(kind, "tgz_md5", hashlib.md5(archive.getvalue()).hexdigest())
    return archive.getvalue()


def lay_out(root, layout, name, monkeypatch):
    _, classes = KINDS[name]
    count = len(classes)
    if layout == "torchvision":
        torchvision_files(root, monkeypatch, name)
    elif layout == "archive":
        write_cifar(root, count, count, name=name, classes=classes)
    else:
        folder = root / name if layout == "tree" else root
        for split, seed in (("train", 1), ("test", 0)):
            for picture, label in zip(pixels(count, seed), classes, strict=True):
                (folder / split / label).mkdir(parents=True)
                Image.fromarray(picture).save(folder / split / label / "0.png")


@pytest.mark.parametrize("second", ["torchvision", "archive", "tree"])
@pytest.mark.parametrize("first", ["torchvision", "archive", "tree", "bare tree"])
def test_one_folder_holds_both_cifars(tmp_path, monkeypatch, first, second):
    lay_out(tmp_path, first, "cifar10", monkeypatch)
    lay_out(tmp_path, second, "cifar100", monkeypatch)
    ten, hundred = (
        load(DataSpec(name, str(tmp_path), download=False)) for name in ("cifar10", "cifar100")
    )
    assert (ten.classes, ten.sizes) == (CIFAR10_CLASSES, (10, 10))
    assert (hundred.classes, hundred.sizes) == (HUNDRED, (100, 100))
    assert torch.equal(ten.train_x[ten.train_y.argsort()], torch.from_numpy(pixels(10, 1)))


def test_complete_files_are_read_without_a_download_or_a_lock(tmp_path, monkeypatch):
    torchvision_files(tmp_path, monkeypatch, "cifar10")
    monkeypatch.setattr(datasets.CIFAR10, "download", lambda self: pytest.fail("downloaded"))
    before = sorted(tmp_path.rglob("*"))
    assert load(DataSpec("cifar10", str(tmp_path))).sizes == (10, 10)
    assert sorted(tmp_path.rglob("*")) == before


def test_tree_of_the_other_cifar_is_refused_with_the_right_location(tmp_path, monkeypatch):
    lay_out(tmp_path, "bare tree", "cifar10", monkeypatch)
    line = r"train holds 10 class folders; cifar100 has 100.*holds cifar100\.npz, cifar100/\{train"
    refused(DataSpec("cifar100", str(tmp_path)), line)


def publish(monkeypatch, address):
    """Make torchvision download CIFAR-10 from an address."""
    monkeypatch.setattr(datasets.CIFAR10, "url", f"{address}/{datasets.CIFAR10.filename}")


def test_download_replaces_missing_and_damaged_files(tmp_path, monkeypatch, serve):
    files = torchvision_files(tmp_path / "published", monkeypatch, "cifar10")
    publish(monkeypatch, serve(answer(files)))
    for damaged in (None, "train", "meta"):
        if damaged:
            (tmp_path / "mine" / "cifar-10-batches-py" / damaged).write_bytes(b"rubbish")
            refused(
                DataSpec("cifar10", str(tmp_path / "mine"), download=False),
                "is not complete, or damaged",
            )
        (tmp_path / "mine").mkdir(exist_ok=True)
        assert load(DataSpec("cifar10", str(tmp_path / "mine"))).classes == CIFAR10_CLASSES


@pytest.mark.parametrize("what", ["other bytes", "cut", "no web server", "not found", "no archive"])
def test_damaged_download_is_one_line(tmp_path, monkeypatch, serve, what):
    archive = torchvision_files(tmp_path / "published", monkeypatch, "cifar10")
    if what == "no archive":  # with the right checksum, so that unpacking fails
        monkeypatch.setattr(datasets.CIFAR10, "tgz_md5", hashlib.md5(b"rubbish").hexdigest())
    answers = {
        "other bytes": answer(b"<html>log in first</html>"),
        "cut": answer(archive[:1000], len(archive)),
        "no web server": b"SSH-2.0-OpenSSH_9.6\r\n",
        "not found": b"HTTP/1.0 404 Not Found\r\n\r\n",
        "no archive": answer(b"rubbish"),
    }
    publish(monkeypatch, serve(answers[what]))
    (tmp_path / "mine").mkdir()
    line = r"could not be downloaded from http://127.* \(.+\); give root"
    refused(DataSpec("cifar10", str(tmp_path / "mine")), line)


def test_damaged_torchvision_file_is_never_unpickled(tmp_path, monkeypatch):
    torchvision_files(tmp_path, monkeypatch, "cifar10")
    folder = tmp_path / "cifar-10-batches-py"
    for name in ("train", "test", "meta"):
        good = (folder / name).read_bytes()
        (folder / name).write_bytes(pickle.dumps(Bomb(tmp_path)))
        refused(DataSpec("cifar10", str(tmp_path), download=False), "is not complete, or damaged")
        (folder / name).write_bytes(good)
    assert not (tmp_path / "exploded").exists()
    assert load(DataSpec("cifar10", str(tmp_path), download=False)).sizes == (10, 10)


def test_archive_beyond_memory_is_refused_before_unpacking(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "cifar10.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("classes", "train_x", "train_y", "test_x", "test_y"):
            archive.writestr(f"{name}.npy", b"")
    content = (tmp_path / "cifar10.npz").read_bytes()
    # The first entry's unpacked size, in the directory at the end.
    offset = content.index(b"PK\1\2") + 24
    (tmp_path / "cifar10.npz").write_bytes(
        content[:offset] + struct.pack("<I", 2_140_000_000) + content[offset + 4 :]
    )
    monkeypatch.setattr(tree_module, "available_memory", lambda _: 4 * 10**9)
    line = r"cifar10\.npz: 2\.1 GB unpacked take 4\.3 GB to read and 4\.0 GB are free"
    refused(DataSpec("cifar10", str(tmp_path)), line)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"train_y": np.array([0, 1])}, r"train_y is .*\(10,\)"),
        ({"test_y": np.full(10, 10)}, "runs from 10 to 10"),
        ({"test_x": np.zeros((10, 8, 8, 3), np.uint8)}, r"must be \(N, 32, 32, 3\)"),
        (
            {"classes": [name.capitalize() for name in CIFAR10_CLASSES]},
            "class 0 is 'Airplane', in cifar10 'airplane'",
        ),
        ({"classes": [b"\xff"] * 10}, "is damaged or not"),
        ({"train_x": np.zeros((10, 32, 32, 3), np.float32)}, "must be uint8"),
        ({"test_x": np.array([None] * 10)}, "is damaged or not"),
    ],
)
def test_wrong_archive_is_one_line(tmp_path, change, line):
    write_cifar(tmp_path, **change)
    refused(DataSpec("cifar10", str(tmp_path)), line)


@pytest.mark.parametrize(
    "change",
    [
        {"classes": [name.encode() for name in CIFAR10_CLASSES]},
        {"classes": None},
        {"train_y": np.arange(10).astype(">i2"), "test_y": np.arange(10).astype("u1")},
    ],
    ids=["bytes", "no classes", "byte order"],
)
def test_other_archive_formats_hold_the_same_data(tmp_path, change):
    checksums = []
    for changes in ({}, change):
        write_cifar(tmp_path, **changes)
        data = load(DataSpec("cifar10", str(tmp_path)))
        assert data.classes == CIFAR10_CLASSES
        checksums.append(data.checksum())
    assert checksums[0] == checksums[1]


@pytest.mark.network
def test_published_cifar_is_downloaded(tmp_path):
    images = load(DataSpec("cifar10", root=str(tmp_path)))
    assert images.sizes == (50_000, 10_000)


def test_folder_that_cannot_be_written_is_named_with_its_option(tmp_path):
    (tmp_path / "file").write_text("")
    spec = DataSpec("cifar10")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BNRECON_DATA", str(tmp_path / "file"))
        refused(spec, r"file cannot be written .*; give root=FOLDER, a folder of yours")
