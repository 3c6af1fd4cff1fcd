"""Image files: formats, orientation, damage, and what is never opened."""

import os
import struct
import warnings
import zlib

import numpy as np
import pytest
from image_sets import refused, tree
from PIL import EpsImagePlugin, ExifTags, Image

from bnrecon.data import DataSpec
from bnrecon.data.image_file import read_image
from bnrecon.runtime.errors import UserError


def png(width, height, depth, colour, rows, **chunks):
    """A PNG file of raw rows, each preceded by its filter byte."""

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


def test_16_bit_grey_and_colour_keep_their_upper_8_bits(tmp_path):
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


def test_pixels_of_unknown_range_are_refused_with_their_mode(tmp_path):
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


@pytest.mark.parametrize(("tag", "value"), [(258, 12), (262, 0)])  # 12 bits per sample; 0 is white
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
def test_image_is_turned_by_its_exif_orientation(tmp_path, orientation, suffix):
    levels, exif = np.arange(6, dtype=np.uint8).reshape(2, 3), Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    file = tmp_path / f"turned.{suffix}"
    Image.fromarray(levels).convert("RGB").save(file, exif=exif, lossless=True)
    wanted = TURNED[orientation](levels)
    assert np.array_equal(np.asarray(read_image(file)), np.repeat(wanted[..., None], 3, 2))


def test_unreadable_exif_data_turns_no_image(tmp_path):
    for content in (b"", b"damaged", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\0\1\x01\x12\0\3"):
        Image.new("RGB", (3, 2)).save(tmp_path / "image.jpg", exif=b"Exif\0\0" + content)
        assert read_image(tmp_path / "image.jpg").size == (3, 2)


def test_file_of_several_images_is_refused_except_camera_previews(tmp_path):
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
@pytest.mark.parametrize("side", [30_000, 10_000])  # Pillow raises, and only warns
def test_decompression_bomb_is_named_and_not_unpacked(tmp_path, side):
    before = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    (tree(tmp_path) / "train" / "ant" / "3.png").write_bytes(png(side, side, 8, 2, b"\0"))
    refused(
        DataSpec("folder", str(tmp_path)),
        r"3\.png has more than 89,478,485 pixels, the most that are read; make it",
    )
    assert (Image.MAX_IMAGE_PIXELS, list(warnings.filters)) == before


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "webp", "bmp", "ppm"])
def test_truncated_image_is_named(tmp_path, suffix):
    file = tmp_path / f"0.{suffix}"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)
    whole = file.read_bytes()
    for length in range(0, len(whole) * 2 // 3, 1 + len(whole) // 40):
        file.write_bytes(whole[:length])
        with pytest.raises(UserError, match=rf"0\.{suffix} is (empty|not a readable image)"):
            read_image(file)


def test_no_program_is_started_for_an_image(tmp_path, monkeypatch):
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow looks for Ghostscript again
    (tmp_path / "0.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    )
    with pytest.raises(UserError, match=r"0\.png is not a readable image"):
        read_image(tmp_path / "0.png")
    assert not (tmp_path / "started").exists()
