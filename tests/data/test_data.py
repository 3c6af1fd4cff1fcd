"""Data sets: the same pixels in every layout, and one clear line for everything that is wrong."""

import hashlib
import io
import os
import pickle
import resource
import shutil
import struct
import tarfile
import warnings
import zipfile
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from image_sets import Bomb, pixels, refused, tree, write_cifar
from local_server import answer
from PIL import EpsImagePlugin, ExifTags, Image
from torchvision import datasets

from bnrecon.data import DATASETS, DataSpec, load, register_data
from bnrecon.data.batches import EpochPosition
from bnrecon.data.image_file import read_image
from bnrecon.data.imagenette import CLASSES as IMAGENETTE
from bnrecon.data.small_images import CIFAR10_CLASSES
from bnrecon.data.spec import DATASET_NAMES, default_root
from bnrecon.data.streaming import StreamedImages
from bnrecon.runtime.errors import UserError

CPU = torch.device("cpu")


def test_downloads_go_where_the_environment_says_or_home(monkeypatch, no_home):
    monkeypatch.setenv("BNRECON_DATA", "images")
    assert default_root() == Path("images")
    monkeypatch.delenv("BNRECON_DATA")
    refused(DataSpec("cifar10"), r"^you have no home folder .*; give root=FOLDER, or set")
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert default_root() == Path("cache/bnrecon/data")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert default_root() == Path("/home/somebody/.cache/bnrecon/data")


def test_digits_are_embedded_and_always_the_same(digits):
    assert digits.sizes == (1437, 360)
    assert digits.shape == (1, 8, 8)
    assert digits.train_x.dtype == torch.uint8
    assert digits.train_x.max() == 255
    assert torch.bincount(digits.test_y).min() >= 34
    assert digits.checksum()[:12] == "aa7e9cc0169d"  # scikit-learn 1.9's load_digits


def test_order_on_disk_does_not_matter(tmp_path):
    tree(tmp_path / "a")
    first = load(DataSpec("folder", str(tmp_path / "a")))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    names = sorted((tmp_path / "b" / "train" / "ant").iterdir())
    for number, file in enumerate(names):
        file.rename(file.with_name(f"z{len(names) - number}.png"))
    assert load(DataSpec("folder", str(tmp_path / "b"))).checksum() == first.checksum()


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


def test_an_epoch_taken_up_in_its_middle_goes_on_as_it_would_have(digits):
    whole = list(digits.train_batches(EpochPosition(64, 3, 5), CPU))
    rest = list(digits.train_batches(EpochPosition(64, 3, 5, 15), CPU))
    assert all(torch.equal(a[0], b[0]) for a, b in zip(whole[15:], rest, strict=True))
    other = next(iter(digits.train_batches(EpochPosition(64, 3, 6), CPU)))
    assert not torch.equal(other[0], whole[0][0])


def test_crops_and_flips_move_pixels_and_nothing_else(tmp_path):
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


def test_limits_take_a_sample_of_all_classes():
    data = load(DataSpec("digits", train_limit=200, test_limit=50))
    assert data.sizes == (200, 50)
    assert torch.bincount(data.train_y, minlength=10).min() > 5


def test_images_of_several_sizes_need_a_side(tmp_path):
    tree(tmp_path)
    Image.fromarray(np.zeros((5, 9, 3), np.uint8)).save(tmp_path / "train" / "ant" / "0.png")
    refused(DataSpec("folder", str(tmp_path)), r"side=32")
    assert load(DataSpec("folder", str(tmp_path), side=16)).shape == (3, 16, 16)


def test_a_broken_image_of_a_streamed_set_is_one_line_from_a_worker_too(tmp_path):
    tree(tmp_path, side=40)
    (tmp_path / "train" / "bee" / "3.png").write_bytes(b"rubbish")
    data = load(DataSpec("imagenet", str(tmp_path), side=32, workers=1))
    with pytest.raises(UserError, match=r"3\.png is not a readable image") as raised:
        list(data.train_batches(EpochPosition(4, 0, 1), CPU))
    assert "\n" not in str(raised.value)


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
def test_a_wrong_archive_is_one_line(tmp_path, change, line):
    write_cifar(tmp_path, **change)
    refused(DataSpec("cifar10", str(tmp_path)), line)


def test_an_archive_with_a_pickle_in_it_is_refused(tmp_path):
    write_cifar(tmp_path, classes=np.array([Bomb(tmp_path)]))
    refused(DataSpec("cifar10", str(tmp_path)), "damaged or not an archive")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"classes": [name.encode() for name in CIFAR10_CLASSES]},
        {"classes": None},
        {"train_y": np.arange(10).astype(">i2"), "test_y": np.arange(10).astype("u1")},
    ],
    ids=["bytes", "no classes", "byte order"],
)
def test_archives_that_are_written_otherwise_are_the_same_data(tmp_path, change):
    checksums = []
    for changes in ({}, change):
        write_cifar(tmp_path, **changes)
        data = load(DataSpec("cifar10", str(tmp_path)))
        assert data.classes == CIFAR10_CLASSES
        checksums.append(data.checksum())
    assert checksums[0] == checksums[1]


def test_imagenet_streams_the_same_crops_in_the_same_order(tmp_path):
    tree(tmp_path, side=40, tests="val")
    data = load(DataSpec("imagenet", str(tmp_path), side=32, workers=0))
    assert data.shape == (3, 32, 32)
    first, again = (list(data.train_batches(EpochPosition(4, 0, 1), CPU)) for _ in range(2))
    assert len(first) == 3
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    rest = list(data.train_batches(EpochPosition(4, 0, 1, 2), CPU))
    assert torch.equal(rest[0][0], first[2][0])
    assert sum(len(y) for _, y in data.test_batches(4, CPU)) == 6
    assert len(data.checksum()) == 64
    shutil.rmtree(tmp_path / "val")
    line = r"val is missing; .* train/<class>/\* and val/<class>/\*"
    refused(DataSpec("imagenet", str(tmp_path)), line)


def test_files_that_are_no_images_by_their_names_are_counted_and_left_out(tmp_path, caplog):
    root = tree(tmp_path)
    whole = load(DataSpec("folder", str(root))).checksum()
    assert "left out" not in caplog.text
    for name in ("a.heic", "notes.txt", ".hidden"):
        (root / "train" / "bee" / name).write_bytes(b"?")
    assert load(DataSpec("folder", str(root))).checksum() == whole
    assert "train: files without an image suffix are skipped: 2, such as bee/a.heic" in (
        caplog.text
    )


def png(width, height, depth, colour, rows, **chunks):
    """A PNG file of these raw rows, each with its filter byte in front."""

    def chunk(name, content):
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    between = b"".join(chunk(name.encode(), content) for name, content in chunks.items())
    parts = (
        chunk(b"IHDR", header) + between + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )
    return b"\x89PNG\r\n\x1a\n" + parts


LEVELS = np.array([[0, 255, 256], [0x1234, 0x8080, 65535]], np.uint16)
UPPER = np.array([[0, 0, 1], [0x12, 0x80, 255]])


def test_grey_of_16_bits_keeps_its_upper_8_as_colour_of_16_bits_does(tmp_path):
    Image.fromarray(LEVELS).save(tmp_path / "grey.png")
    Image.fromarray(LEVELS).save(tmp_path / "grey.tif")
    big = Image.new("I;16B", (3, 2))
    big.frombytes(LEVELS.astype(">u2").tobytes())
    big.save(tmp_path / "big.tif")
    for channels, colour in ((2, 4), (3, 2), (4, 6)):  # grey with alpha, RGB, RGBA
        rows = [
            b"\0" + np.repeat(row[:, None], channels, 1).astype(">u2").tobytes() for row in LEVELS
        ]
        (tmp_path / f"{channels}.png").write_bytes(png(3, 2, 16, colour, b"".join(rows)))
    files = sorted(tmp_path.iterdir())
    assert len(files) == 6
    for file in files:
        picture = read_image(file)
        assert picture.mode == "RGB"
        assert np.array_equal(np.asarray(picture), np.repeat(UPPER[..., None], 3, 2)), file.name


def test_pixels_whose_range_is_not_known_are_refused_with_their_mode(tmp_path):
    for name, levels, mode in (
        ("float.tif", LEVELS / 65535, "F"),
        ("whole.tif", LEVELS.astype(np.int32), "I"),
        ("signed.tif", LEVELS.astype(np.int16), "I"),
    ):
        Image.fromarray(levels.astype(np.float32) if mode == "F" else levels).save(tmp_path / name)
        with pytest.raises(
            UserError, match=rf"{name} has pixels of mode {mode}, .*save it with 8 or 16 bits"
        ):
            read_image(tmp_path / name)


@pytest.mark.parametrize(("tag", "value"), [(258, 12), (262, 0)])  # 12 bits a sample; 0 is white
def test_grey_tiffs_of_other_ranges_are_refused(tmp_path, tag, value):
    file = tmp_path / "grey.tif"
    Image.fromarray(LEVELS).save(file)
    content = file.read_bytes()
    entry = content.index(struct.pack("<HHI", tag, 3, 1))
    file.write_bytes(content[: entry + 8] + struct.pack("<H", value) + content[entry + 10 :])
    with pytest.raises(
        UserError, match=r"grey\.tif is grey of .* bits .*save it with 8 or 16 bits, 0 for black"
    ):
        read_image(file)


def test_other_modes_are_converted_and_transparency_is_dropped(tmp_path):
    palette = {"PLTE": bytes([10, 20, 30, 40, 50, 60]), "tRNS": bytes([0, 128])}
    (tmp_path / "palette.png").write_bytes(png(2, 1, 8, 3, b"\0\0\1", **palette))
    (tmp_path / "alpha.png").write_bytes(
        png(2, 1, 8, 6, b"\0" + bytes([10, 20, 30, 0, 40, 50, 60, 255]))
    )
    (tmp_path / "bits.png").write_bytes(png(2, 1, 1, 0, b"\0\x40"))
    Image.new("CMYK", (1, 1), (255, 0, 0, 0)).save(tmp_path / "cmyk.tif")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_name = {
            file.stem: np.asarray(read_image(file)).reshape(-1, 3).tolist()
            for file in tmp_path.iterdir()
        }
    colours = [[10, 20, 30], [40, 50, 60]]
    assert by_name == {
        "palette": colours,
        "alpha": colours,
        "bits": [[0] * 3, [255] * 3],
        "cmyk": [[0, 255, 255]],
    }


TURNED = {  # by EXIF's orientation
    1: lambda rows: rows,
    2: np.fliplr,
    3: lambda rows: np.rot90(rows, 2),
    4: np.flipud,
    5: np.transpose,
    6: lambda rows: np.rot90(rows, -1),
    7: lambda rows: np.rot90(rows, 2).T,
    8: np.rot90,
}


@pytest.mark.parametrize("suffix", ["png", "webp", "tif"])
@pytest.mark.parametrize("orientation", TURNED)
def test_an_image_is_turned_as_its_exif_data_says(tmp_path, orientation, suffix):
    levels, exif = np.arange(6, dtype=np.uint8).reshape(2, 3), Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    file = tmp_path / f"turned.{suffix}"
    Image.fromarray(levels).convert("RGB").save(file, exif=exif, lossless=True)
    wanted = TURNED[orientation](levels)
    assert np.array_equal(np.asarray(read_image(file)), np.repeat(wanted[..., None], 3, 2))


def test_exif_data_that_cannot_be_read_turn_no_image(tmp_path):
    for content in (b"", b"damaged", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\0\1\x01\x12\0\3"):
        Image.new("RGB", (3, 2)).save(tmp_path / "image.jpg", exif=b"Exif\0\0" + content)
        assert read_image(tmp_path / "image.jpg").size == (3, 2)


def test_a_file_of_several_images_is_refused_but_a_cameras_previews_are_not(tmp_path):
    pictures = [Image.new("RGB", (8, 8), (40 * i, 0, 0)) for i in range(3)]
    for suffix in ("tif", "png", "webp"):
        file = tmp_path / f"stack.{suffix}"
        pictures[0].save(file, save_all=True, append_images=pictures[1:], lossless=True)
        with pytest.raises(UserError, match=rf"stack\.{suffix} holds 3 images; save each"):
            read_image(file)
    pictures[2].save(
        tmp_path / "camera.jpg", format="MPO", save_all=True, append_images=pictures[:1]
    )
    assert abs(read_image(tmp_path / "camera.jpg").getpixel((0, 0))[0] - 80) < 4


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [30_000, 10_000])  # where Pillow raises, and where it only warns
def test_a_decompression_bomb_is_named_and_not_unpacked(tmp_path, side):
    before = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    (tree(tmp_path) / "train" / "ant" / "3.png").write_bytes(png(side, side, 8, 2, b"\0"))
    refused(
        DataSpec("folder", str(tmp_path)),
        r"3\.png has more than 89,478,485 pixels, the most that are read; make it",
    )
    assert (Image.MAX_IMAGE_PIXELS, list(warnings.filters)) == before


@pytest.mark.parametrize("what", ["pipe", "/dev/zero", "nowhere.png"])
@pytest.mark.parametrize("name", ["folder", "imagenet"])
def test_only_regular_files_are_opened(tmp_path, name, what):
    tree(tmp_path)
    file = tmp_path / "train" / "bee" / "9.png"
    os.mkfifo(file) if what == "pipe" else file.symlink_to(what)
    line = r"train/bee/9\.png is neither a regular file nor a link to one; remove it"
    refused(DataSpec(name, str(tmp_path)), line)


def test_links_to_images_and_to_class_folders_are_followed_and_hidden_files_are_not_images(
    tmp_path,
):
    tree(tmp_path / "real")
    (tmp_path / "linked" / "train").mkdir(parents=True)
    shutil.copytree(tmp_path / "real" / "test", tmp_path / "linked" / "test")
    (tmp_path / "linked" / "train" / "ant").symlink_to(tmp_path / "real" / "train" / "ant")
    (tmp_path / "linked" / "train" / "bee").mkdir()
    for file in (tmp_path / "real" / "train" / "bee").iterdir():
        (tmp_path / "linked" / "train" / "bee" / file.name.upper()).symlink_to(file)
    (tmp_path / "linked" / "train" / "bee" / "._0.png").write_bytes(
        b"what macOS leaves beside a copy"
    )
    (tmp_path / "linked" / "train" / ".DS_Store").write_bytes(b"")
    linked, real = (load(DataSpec("folder", str(tmp_path / name))) for name in ("linked", "real"))
    assert linked.checksum() == real.checksum()


def test_names_that_are_not_utf8_are_read_and_printable_in_messages(tmp_path):
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
def test_a_folder_that_is_missing_or_empty_is_named(tmp_path, gone, line):
    shutil.rmtree(tree(tmp_path) / gone)
    if gone.endswith("/"):
        (tmp_path / gone).mkdir()
    refused(DataSpec("folder", str(tmp_path)), line)


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp", "bmp", "ppm"])
def test_an_image_cut_anywhere_is_named(tmp_path, suffix):
    file = tmp_path / f"0.{suffix}"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)
    whole = file.read_bytes()
    for length in range(0, len(whole) * 2 // 3, 1 + len(whole) // 40):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=rf"0\.{suffix} is (empty|not a readable image)"):
            read_image(file)


def test_a_program_is_never_started_for_an_image(tmp_path, monkeypatch):
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow looks for Ghostscript anew
    (tmp_path / "0.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    )
    with pytest.raises(UserError, match=r"0\.png is not a readable image"):
        read_image(tmp_path / "0.png")
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("crop_padding", [8, 10**12])
def test_a_crop_that_could_miss_the_image_is_refused(tmp_path, crop_padding):
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
    """Items as Hugging Face's data sets have them, of classes without names."""
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


def test_every_data_set_that_can_be_named_is_registered_and_tested():
    assert tuple(DATASETS) == DATASET_NAMES == tuple(SMALL)[:-1]


@pytest.mark.parametrize("limit", [2, 5, 8, 13, 19, 20, 99])
def test_plain_images_of_a_streamed_set_are_spread_over_its_classes(limit):
    """Also where their number is no multiple of the limit: files are sorted by class."""
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
def test_every_data_set_gives_the_same_kinds_of_batches(tmp_path, name):
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
    again = list(data.train_batches(EpochPosition(4, 0, 0, len(batches) - 1), CPU))
    assert torch.equal(again[0][0], batches[-1][0])


def test_images_that_would_not_fit_into_memory_are_refused_before_they_are_read(tmp_path):
    tree(tmp_path, classes=("ant",), train=1, test=1)
    for number in range(1000):
        os.link(tmp_path / "train" / "ant" / "0.png", tmp_path / "train" / "ant" / f"{number}b.png")
    before = resource.getrlimit(resource.RLIMIT_AS)
    if before[1] == resource.RLIM_INFINITY:  # then on a machine of any size
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
def test_a_single_training_image_is_refused_and_a_single_class_is_not(tmp_path, name):
    refused(
        DataSpec(name, str(tree(tmp_path / "one", ("ant",), train=1))),
        "1 training image; training needs two or more",
    )
    assert load(DataSpec(name, str(tree(tmp_path / "two", ("ant",), train=2)))).sizes == (2, 3)


HUNDRED = tuple(f"c{number:02}" for number in range(100))
KINDS = {"cifar10": (datasets.CIFAR10, CIFAR10_CLASSES), "cifar100": (datasets.CIFAR100, HUNDRED)}


def torchvision_files(root, monkeypatch, name):
    """Write a small CIFAR as torchvision's files, whose checksums it then expects.

    Returns the archive of them.
    """
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


def test_files_at_hand_are_read_without_a_download_or_a_lock(tmp_path, monkeypatch):
    torchvision_files(tmp_path, monkeypatch, "cifar10")
    monkeypatch.setattr(datasets.CIFAR10, "download", lambda self: pytest.fail("downloaded"))
    before = sorted(tmp_path.rglob("*"))
    assert load(DataSpec("cifar10", str(tmp_path))).sizes == (10, 10)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_tree_of_the_other_cifar_is_refused_with_where_this_one_goes(tmp_path, monkeypatch):
    lay_out(tmp_path, "bare tree", "cifar10", monkeypatch)
    line = r"train holds 10 class folders; cifar100 has 100.*holds cifar100\.npz, cifar100/\{train"
    refused(DataSpec("cifar100", str(tmp_path)), line)


def publish(monkeypatch, address):
    """Make torchvision download CIFAR-10 from this address."""
    monkeypatch.setattr(datasets.CIFAR10, "url", f"{address}/{datasets.CIFAR10.filename}")


def test_a_download_mends_what_is_missing_or_damaged(tmp_path, monkeypatch, serve):
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
def test_a_download_that_arrives_damaged_is_one_line(tmp_path, monkeypatch, serve, what):
    archive = torchvision_files(tmp_path / "published", monkeypatch, "cifar10")
    if what == "no archive":  # with the right checksum, to see what unpacking raises
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


def test_a_damaged_file_of_torchvision_is_never_unpickled(tmp_path, monkeypatch):
    torchvision_files(tmp_path, monkeypatch, "cifar10")
    folder = tmp_path / "cifar-10-batches-py"
    for name in ("train", "test", "meta"):
        good = (folder / name).read_bytes()
        (folder / name).write_bytes(pickle.dumps(Bomb(tmp_path)))
        refused(DataSpec("cifar10", str(tmp_path), download=False), "is not complete, or damaged")
        (folder / name).write_bytes(good)
    assert not (tmp_path / "exploded").exists()
    assert load(DataSpec("cifar10", str(tmp_path), download=False)).sizes == (10, 10)


def test_an_archive_that_unpacks_to_gigabytes_is_refused_before_it_is_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "cifar10.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("classes", "train_x", "train_y", "test_x", "test_y"):
            archive.writestr(f"{name}.npy", b"")
    content = (tmp_path / "cifar10.npz").read_bytes()
    # The first entry's unpacked size, in the directory at the end
    offset = content.index(b"PK\1\2") + 24
    (tmp_path / "cifar10.npz").write_bytes(
        content[:offset] + struct.pack("<I", 2**31) + content[offset + 4 :]
    )
    refused(
        DataSpec("cifar10", str(tmp_path)),
        r"cifar10\.npz is damaged or not an archive .*over 1\.0 GB unpacked",
    )


@pytest.mark.network
def test_cifar_is_downloaded_as_it_was_published(tmp_path):
    images = load(DataSpec("cifar10", root=str(tmp_path)))
    assert images.sizes == (50_000, 10_000)
