"""From an image file to 8-bit RGB pixels, or to a one-line error that names the file."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from bnrecon.runtime.errors import UserError, printable

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}
MOST_PIXELS = 2**30 // 12  # Pillow warns of a decompression bomb above
# Recognized by their first bytes, not the suffix. No others: for EPS, say, Pillow runs Ghostscript.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
BITS_PER_SAMPLE, PHOTOMETRIC, BLACK_IS_ZERO = 258, 262, 1  # TIFF's tags, and the usual meaning of 0


def read_image(path: Path) -> Image.Image:
    """Read one image as 8-bit RGB, without transparency; 16-bit ones keep 8 bits (PPM: rounded).

    The image is rotated by its EXIF orientation, if that can be read.

    Raises ``UserError`` naming the file if it is empty or damaged, cannot be read, has more than
    ``MOST_PIXELS`` pixels or several frames, or if its pixels have no fixed range (32-bit integers,
    floats).

    >>> read_image(Path("holiday.png")).mode
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: holiday.png cannot be read (No such file or directory); ...
    """
    try:
        with Image.open(path, formats=FORMATS) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise Image.DecompressionBombError
            if reason := _refused(picture):
                raise UserError(f"{printable(path)} {reason}")
            return _rgb(_upright(picture))
    except UserError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):  # a caller's -W error
        reason = f"has more than {MOST_PIXELS:,} pixels, the most that are read"
        raise UserError(f"{printable(path)} {reason}; make it smaller or remove it") from None
    except Exception as error:  # Pillow's readers, zlib and the system raise different errors
        reason = _unreadable(path, error)
        raise UserError(f"{printable(path)} {reason}; replace or remove it") from None


def _refused(picture: Image.Image) -> str | None:
    """Why a decodable image is refused, and what to do; None if it is accepted."""
    frames = getattr(picture, "n_frames", 1)
    if frames > 1 and picture.format != "MPO":  # MPO: a camera's JPEG with previews
        return f"holds {frames} images; save each as a file of its own"
    mode = f"mode {picture.mode}"
    if picture.mode in ("F", "I", "La"):
        return f"has pixels of {mode}, of no known range; save it with 8 or 16 bits, grey or RGB"
    if picture.mode.startswith("I;16") and picture.format == "TIFF":
        tags = getattr(picture, "tag_v2", {})  # only TIFF has it
        bits = tags.get(BITS_PER_SAMPLE, (16,))[0]
        zero = tags.get(PHOTOMETRIC, BLACK_IS_ZERO)
        if bits != 16 or zero != BLACK_IS_ZERO:
            fault = f"is grey of {bits} bits ({mode}, photometric {zero})"
            return f"{fault}; save it with 8 or 16 bits, 0 for black"
    return None


def _upright(picture: Image.Image) -> Image.Image:
    try:
        return ImageOps.exif_transpose(picture)
    except (struct.error, KeyError, SyntaxError, TypeError, ValueError, ZeroDivisionError):
        return picture  # EXIF data that Pillow fails to parse


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I;16"):  # Pillow clips these; of colour it keeps the upper byte
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    elif picture.mode == "P" and "transparency" in picture.info:  # avoids Pillow's warning
        picture = picture.convert("RGBA")
    return picture.convert("RGB")


def _unreadable(path: Path, error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    if path.stat().st_size == 0:
        return "is empty"
    return f"is not a readable image ({error.__class__.__name__})"
