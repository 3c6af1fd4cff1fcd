"""Folders of images: order, links, missing and unreadable files, memory."""

import multiprocessing
import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from image_sets import refused, tree
from PIL import Image

from bnrecon.data import DataSpec, load
from bnrecon.data.batches import EpochPosition
from bnrecon.runtime.errors import RunError, UserError

CPU = torch.device("cpu")


def test_order_on_disk_does_not_matter(tmp_path):
    tree(tmp_path / "a")
    first = load(DataSpec("folder", str(tmp_path / "a")))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    names = sorted((tmp_path / "b" / "train" / "ant").iterdir())
    for number, file in enumerate(names):
        file.rename(file.with_name(f"z{len(names) - number}.png"))
    assert load(DataSpec("folder", str(tmp_path / "b"))).checksum() == first.checksum()


def test_images_of_several_sizes_need_a_side(tmp_path):
    tree(tmp_path)
    Image.fromarray(np.zeros((5, 9, 3), np.uint8)).save(tmp_path / "train" / "ant" / "0.png")
    refused(DataSpec("folder", str(tmp_path)), r"side=32")
    assert load(DataSpec("folder", str(tmp_path), side=16)).shape == (3, 16, 16)


def test_broken_streamed_image_is_one_line_also_from_a_worker(tmp_path):
    tree(tmp_path, side=40)
    (tmp_path / "train" / "bee" / "3.png").write_bytes(b"rubbish")
    data = load(DataSpec("imagenet", str(tmp_path), side=32, workers=1))
    with pytest.raises(UserError, match=r"3\.png is not a readable image") as raised:
        list(data.train_batches(EpochPosition(4, 0, 1), CPU))
    assert "\n" not in str(raised.value)


def test_files_without_image_suffix_are_counted_and_skipped(tmp_path, caplog):
    root = tree(tmp_path)
    whole = load(DataSpec("folder", str(root))).checksum()
    assert "left out" not in caplog.text
    for name in ("a.heic", "notes.txt", ".hidden"):
        (root / "train" / "bee" / name).write_bytes(b"?")
    assert load(DataSpec("folder", str(root))).checksum() == whole
    assert "train: files without an image suffix are skipped: 2, such as bee/a.heic" in (
        caplog.text
    )


@pytest.mark.parametrize("what", ["pipe", "/dev/zero", "nowhere.png"])
@pytest.mark.parametrize("name", ["folder", "imagenet"])
def test_only_regular_files_are_opened(tmp_path, name, what):
    tree(tmp_path)
    file = tmp_path / "train" / "bee" / "9.png"
    os.mkfifo(file) if what == "pipe" else file.symlink_to(what)
    line = r"train/bee/9\.png is neither a regular file nor a link to one; remove it"
    refused(DataSpec(name, str(tmp_path)), line)


def test_links_are_followed_and_hidden_files_are_no_images(tmp_path):
    tree(tmp_path / "real")
    (tmp_path / "linked" / "train").mkdir(parents=True)
    shutil.copytree(tmp_path / "real" / "test", tmp_path / "linked" / "test")
    (tmp_path / "linked" / "train" / "ant").symlink_to(tmp_path / "real" / "train" / "ant")
    (tmp_path / "linked" / "train" / "bee").mkdir()
    for file in (tmp_path / "real" / "train" / "bee").iterdir():
        (tmp_path / "linked" / "train" / "bee" / file.name.upper()).symlink_to(file)
    (tmp_path / "linked" / "train" / "bee" / "._0.png").write_bytes(b"what macOS adds to a copy")
    (tmp_path / "linked" / "train" / ".DS_Store").write_bytes(b"")
    linked, real = (load(DataSpec("folder", str(tmp_path / name))) for name in ("linked", "real"))
    assert linked.checksum() == real.checksum()


def test_non_utf8_names_are_read_and_printable_in_messages(tmp_path):
    odd = os.fsencode(tree(tmp_path) / "train" / "ant") + b"/gr\xf6\xdfe\n.png"
    os.rename(tmp_path / "train" / "ant" / "0.png", odd)
    assert load(DataSpec("folder", str(tmp_path))).sizes == (12, 6)
    assert len(load(DataSpec("imagenet", str(tmp_path), side=8, workers=0)).checksum()) == 64
    Path(os.fsdecode(odd)).write_bytes(b"rubbish")
    refused(DataSpec("folder", str(tmp_path)), r"gr\\udcf6\\udcdfe\\n\.png is not a readable image")


@pytest.mark.parametrize(
    ("gone", "line"),
    [
        ("test", r"test is missing; root=FOLDER must hold"),
        ("test/bee", r"test: the class folders .*\(missing bee\)"),
        ("train/bee/", r"train/bee holds no images"),
    ],
)
def test_missing_or_empty_folder_is_named(tmp_path, gone, line):
    shutil.rmtree(tree(tmp_path) / gone)
    if gone.endswith("/"):
        (tmp_path / gone).mkdir()
    refused(DataSpec("folder", str(tmp_path)), line)


def test_images_beyond_memory_are_refused_before_reading(tmp_path):
    tree(tmp_path, classes=("ant",), train=1, test=1)
    for number in range(1000):
        os.link(tmp_path / "train" / "ant" / "0.png", tmp_path / "train" / "ant" / f"{number}b.png")
    before = resource.getrlimit(resource.RLIMIT_AS)
    if before[1] == resource.RLIM_INFINITY:  # makes the test independent of the machine
        resource.setrlimit(resource.RLIMIT_AS, (90 * 10**9, before[1]))
    try:
        line = refused(
            DataSpec("folder", str(tmp_path), side=4096),
            r"1,001 images of 4096x4096 take 100\.8 GB to read and",
        )
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert "give a smaller side" in line


@pytest.mark.parametrize("name", ["folder", "imagenet"])
def test_single_training_image_is_refused_but_a_single_class_is_not(tmp_path, name):
    refused(
        DataSpec(name, str(tree(tmp_path / "one", ("ant",), train=1))),
        "1 training image; training needs two or more",
    )
    assert load(DataSpec(name, str(tree(tmp_path / "two", ("ant",), train=2)))).sizes == (2, 3)


def test_dead_link_to_a_class_is_refused_and_images_outside_classes_are_counted(tmp_path, caplog):
    root = tree(tmp_path / "made")
    (root / "train" / "loose.png").write_bytes((root / "train" / "ant" / "0.png").read_bytes())
    load(DataSpec("folder", str(root)))
    assert "images outside class folders are skipped: 1, such as loose.png" in caplog.text
    for split in ("train", "test"):
        (root / split / "cat").symlink_to(tmp_path / "nowhere")
    refused(DataSpec("folder", str(root)), "train/cat: this link leads nowhere")


@pytest.mark.filterwarnings("error:This DataLoader")
def test_killed_worker_is_one_line_and_many_workers_are_no_warning(tmp_path):
    root = str(tree(tmp_path, train=20, tests="val"))
    data = load(DataSpec("imagenet", root, side=8, workers=(os.cpu_count() or 1) + 1))
    batches = data.train_batches(EpochPosition(1, 0, 0), CPU)
    next(batches)
    for worker in multiprocessing.active_children():
        worker.kill()
    with pytest.raises(RunError, match=r"was killed \(.*give fewer workers=, or 0"):
        list(batches)
