"""Options that a user gives to a study's runs: which of them change results, which a table sets."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bnrecon.config import schema
from bnrecon.runtime.digests import content_key
from bnrecon.runtime.errors import UserError

__all__ = ["option_name", "refuse_compared", "result_options", "stem_suffix"]


def option_name(option: str) -> str:
    """The name of an option.

    >>> option_name("+target.width=8")
    'target.width'
    """
    return option.lstrip("+~").partition("=")[0]


def refuse_compared(options: Sequence[str], compared: Collection[str]) -> None:
    """Raise ``UserError`` for an option by which a table's rows and columns differ.

    >>> refuse_compared(["train.seed=7"], {"train.seed"})
    Traceback (most recent call last):
    bnrecon.runtime.errors.UserError: train.seed=7: the rows of this table differ by train.seed
    """
    for option in options:
        if option_name(option) in compared:
            raise UserError(f"{option}: the rows of this table differ by {option_name(option)}")


def result_options(options: Sequence[str]) -> list[str]:
    """The options that change results, and not only where or how fast they are computed.

    >>> result_options(["data.root=/images", "target.width=8", "device=cpu"])
    ['target.width=8']
    """
    return sorted(option for option in options if option_name(option) not in schema.VOLATILE)


def stem_suffix(options: Sequence[str]) -> str:
    """What the names of a part's files end in: nothing, or a hash of options that change results.

    >>> stem_suffix(["device=cpu"])
    ''
    """
    changing = result_options(options)
    return f"-{content_key({'words': changing})}" if changing else ""
