"""The command line of a script: its docstring is the help, its options are named by defaults."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


def parser(doc: str | None, *names: str, **options: Any) -> argparse.ArgumentParser:
    """A parser of positional arguments and of options.

    >>> parser("", quick=False, widths=[16, 32]).parse_args(["--widths", "8"])
    Namespace(quick=False, widths=[8])

    Args:
        doc: the script's docstring.
        names: of positional arguments; one that ends in ``*`` takes any number.
        options: their defaults, whose kind is theirs: a flag, a number, a path, words; several of
            them for a list. Settings of ``add_argument`` in a dictionary are used as they are.
    """
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in names:
        made.add_argument(name.rstrip("*"), nargs="*" if name.endswith("*") else None)
    for name, default in options.items():
        settings: dict[str, Any] = {"default": default}
        if isinstance(default, dict):
            settings = default
        elif isinstance(default, bool):
            settings["action"] = "store_true"
        elif isinstance(default, list):
            settings |= {"nargs": "*", "type": type(default[0]) if default else str}
        elif default is not None:
            settings["type"] = type(default)
        made.add_argument(f"--{name.replace('_', '-')}", **settings)
    return made


def require(made: argparse.ArgumentParser, what: str, given: Sequence[str], allowed: Any) -> None:
    """End with a line that names what is not allowed."""
    if unknown := sorted(set(given) - set(allowed)):
        made.error(f"no such {what}: {', '.join(unknown)}; there are {', '.join(allowed)}")
