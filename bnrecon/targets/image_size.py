"""The smallest images that a network takes."""

from __future__ import annotations

from bnrecon.runtime.errors import UserError

__all__ = ["require_side"]


def require_side(family: str, shape: tuple[int, int, int], least: int) -> None:
    """Raise ``UserError`` for images whose shorter side is below ``least`` pixels.

    Args:
        family: the family of networks.
        shape: channels, height and width of an image.
        least: the smallest side.

    >>> require_side("resnet9", (3, 6, 20), 8)
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: resnet9: images of 20x6 pixels are too small; ...
    """
    height, width = shape[1:]
    if min(height, width) < least:
        raise UserError(
            f"{family}: images of {width}x{height} pixels are too small; "
            f"give {least}x{least} or larger ones, as with data.side={least}"
        )
