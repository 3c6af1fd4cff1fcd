"""What a library call is given: each argument that cannot be is named, with what is allowed."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping

import torch
from torch import nn

from bnrecon.construction.activation import FIRST_ACTIVATIONS
from bnrecon.features.pair import SKIPS
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.runtime.errors import UserError, nearest
from bnrecon.solvers.base import SOLVERS

__all__ = ["check_call", "check_model", "check_unsupported", "check_widths"]


def check_model(model: object) -> None:
    """Raise ``UserError`` unless this is a module in eval mode that can be read and rebuilt."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model is {type(model).__name__}; it must be a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise UserError(
            "the model is compiled by torch.jit, its layers cannot be replaced; give the module it was made of"
        )
    if any(module.training for module in model.modules()):
        raise UserError(
            "the model is in training mode, its normalization not yet fixed; call model.eval() before reconstruct"
        )
    types = {str(value.dtype).removeprefix("torch.") for value in model.parameters()}
    if odd := types - {"float32", "float64"}:
        raise UserError(
            f"the model holds {', '.join(sorted(odd))} parameters; reconstruct works in float32 or float64: call model.float()"
        )


def check_call(given: Mapping[str, object]) -> None:
    """Raise ``UserError`` for the first of ``reconstruct``'s arguments, by name, that cannot be.

    >>> check_call({"seed": -1})
    Traceback (most recent call last):
    bnrecon.runtime.errors.UserError: seed=-1: must be a whole number from 0 to 2^63 - 1
    """
    words = {
        "features": DISTRIBUTIONS,
        "solver": ["auto", *SOLVERS],
        "activation": FIRST_ACTIVATIONS,
        "skip": SKIPS,
    }
    for name, value in given.items():
        if name in words:
            _check_word(name, value, words[name])
        elif name == "seed" and not (_is_whole(value) and 0 <= value < 2**63):
            raise UserError(f"seed={value!r}: must be a whole number from 0 to 2^63 - 1")
        elif name == "max_iterations" and not (value is None or (_is_whole(value) and value > 0)):
            raise UserError(f"max_iterations={value!r}: must be a whole number above 0")
        elif name in ("epsilon", "margin", "tolerance") and not _is_positive(value):
            raise UserError(f"{name}={value}: must be above 0")
        elif name in ("strict", "allow_below_minimum") and not isinstance(value, bool):
            raise UserError(f"{name}={value!r}: must be True or False")
        elif name in ("moments", "solved") and not isinstance(value, Mapping | None):
            raise UserError(f"{name}: must map layers' names, not be {type(value).__name__}")
        elif name == "on_layer" and not (value is None or callable(value)):
            raise UserError(
                f"on_layer={value!r}: must be a function of a layer's report and solution"
            )


def check_unsupported(value: object) -> None:
    """Raise ``UserError`` unless it says what to do with layers that cannot be rebuilt."""
    _check_word("unsupported", value, ("raise", "keep"))


def check_widths(oversampling: object, excess: object, width: object) -> None:
    """Raise ``UserError`` unless at most one is given, and is a number that a width can come of."""
    given = {"oversampling": oversampling, "excess": excess, "width": width}
    named = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
    if sum(value is not None for value in given.values()) > 1:
        raise UserError(f"{named}: give one of oversampling (c1/n), excess (c1 - n) and width (c1)")
    if oversampling is not None and not _is_positive(oversampling):
        raise UserError(f"{named}: oversampling must be a number above 0")
    if excess is not None and not _is_whole(excess):
        raise UserError(f"{named}: excess must be a whole number")
    number = str(width).isdecimal() and int(width) > 0
    if width is not None and width not in ("minimum", "maximum") and not number:
        raise UserError(
            f"{named}: width must be a number of features above 0, 'minimum' or 'maximum'"
        )


def _check_word(name: str, value: object, allowed: Iterable[str]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise UserError(f"{name}={value!r}: {nearest(value, allowed)}")


def _is_positive(value: object) -> bool:
    """Whether a value is a real number above 0, and no truth value."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 < value < math.inf


def _is_whole(value: object) -> bool:
    """Whether a value is a whole number, and no truth value."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)
