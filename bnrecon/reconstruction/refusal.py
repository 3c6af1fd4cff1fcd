"""Layers that cannot be rebuilt, and how messages list them."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from bnrecon.runtime.errors import UserError

SHOWN = 3  # refused layers named in a message
LENGTH = 230  # the most characters for them


def layer_label(name: str) -> str:
    """A module's name in messages; the model itself has none.

    >>> layer_label("features.0"), layer_label("")
    ('layer features.0', 'the model')
    """
    return f"layer {name}" if name else "the model"


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype's name in messages."""
    return str(dtype).removeprefix("torch.")


class RefusedLayers(UserError):
    """Layers that cannot be rebuilt; ``refused`` maps the name of each to the reason."""

    def __init__(self, message: str, refused: Mapping[str, str]):
        super().__init__(message)
        self.refused = dict(refused)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle both arguments; by default ``__init__`` would get the message alone."""
        return type(self), (str(self), self.refused)

    def advise_library_user(self) -> None:
        """Add to the message what a library user can do; the command line lacks this argument."""
        advice = "error.refused has all reasons; unsupported='keep' leaves such layers as they are"
        self.args = (f"{self} ({advice})",)


def raise_nothing_to_rebuild(refused: Mapping[str, str]) -> None:
    """Raise ``UserError``: there is nothing to rebuild."""
    if refused:
        none = f"none of the network's {len(refused)} layers can be rebuilt"
        raise RefusedLayers(f"{none} ({list_refused(refused)})", refused)
    raise UserError(
        "the network has no convolution or linear layer (those in a list need nn.ModuleList; one "
        "that is trained by its normalizations alone is a source network already: bnrecon train)"
    )


def list_refused(refused: Mapping[str, str]) -> str:
    """The first few layers with their reasons, and how many more there are.

    >>> list_refused({"0": "too large", "": "compiled"})
    '0: too large; the model: compiled'
    """
    entries = [f"{name or 'the model'}: {reason}" for name, reason in refused.items()]
    shown = entries[:SHOWN]
    while len(shown) > 1 and len("; ".join(shown)) > LENGTH:
        shown.pop()
    if len(shown[0]) > LENGTH:
        shown[0] = shown[0][: LENGTH - 2] + " …"
    more = len(entries) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
