"""From an image file to 8-bit RGB pixels, or to one line that says which file, and why not."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from bnrecon.runtime.errors import UserError, printable

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".tif", ".tiff"}
MOST_PIXELS = 2**30 // 12  # where Pillow begins to suspect a decompression bomb
# Told by their first bytes, whatever the suffix. No others: for EPS, say, Pillow runs Ghostscript.
FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "PPM", "TIFF", "GIF")
BITS_PER_SAMPLE, PHOTOMETRIC, BLACK_IS_ZERO = 258, 262, 1  # TIFF's tags, and what 0 usually is


def read_image(path: Path) -> Image.Image:
    """Read one image as 8-bit RGB; of 16 bits the upper 8 are taken, transparency is dropped.

    It is turned as its EXIF data says, if they say so and can be read.

    Raises ``UserError`` naming the file where it is empty or damaged, cannot be read, has more than
    ``MOST_PIXELS`` pixels or several frames, or where its pixels have no fixed range (32-bit
    integers, floats).

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
    except Exception as error:  # Pillow's readers, zlib and the system each raise their own
        reason = _unreadable(path, error)
        raise UserError(f"{printable(path)} {reason}; replace or remove it") from None


def _refused(picture: Image.Image) -> str | None:
    """Why an image that can be decoded is not read, and what to do; None for one that is read."""
    frames = getattr(picture, "n_frames", 1)
    if frames > 1 and picture.format != "MPO":  # a camera's JPEG with its previews behind
        return f"holds {frames} images; save each as a file of its own"
    mode = f"mode {picture.mode}"
    if picture.mode in ("F", "I", "La"):
        return f"has pixels of {mode}, of no known range; save it with 8 or 16 bits, grey or RGB"
    if picture.mode.startswith("I;16") and picture.format == "TIFF":
        tags = getattr(picture, "tag_v2", {})  # of TIFF alone
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
        return picture  # EXIF data that Pillow, which reads them so, does not take for an error


def _rgb(picture: Image.Image) -> Image.Image:
    if picture.mode.startswith("I;16"):  # Pillow clips these; of colour it takes the upper byte
        picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    elif picture.mode == "P" and "transparency" in picture.info:  # spares Pillow's warning
        picture = picture.convert("RGBA")
    return picture.convert("RGB")


def _unreadable(path: Path, error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read ({error.strerror})"
    if path.stat().st_size == 0:
        return "is empty"
    return f"is not a readable image ({error.__class__.__name__})"
