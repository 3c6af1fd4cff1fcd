"""The command line of a script: its docstring is the help, its options are named by defaults."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any


def parser(
    doc: str | None, *names: str, choices: Mapping[str, Iterable[str]] = {}, **options: Any
) -> argparse.ArgumentParser:
    """A parser of positional arguments and of options.

    A name that ends in ``*`` takes any number of arguments. An option's type is its default's: a
    flag, a number, a path, words, or several of them for a list. ``choices`` are the allowed words,
    by name.
    """
    layout = argparse.RawDescriptionHelpFormatter
    made = argparse.ArgumentParser(description=doc, formatter_class=layout)
    for name, default in ({name: [] if "*" in name else "" for name in names} | options).items():
        word, settings, example = name.rstrip("*"), {}, default
        if isinstance(default, list):
            settings, example = {"nargs": "*"}, (default or [""])[0]
        settings["type"] = type(example)
        if word in choices:  # and the empty list: argparse checks the default of arguments
            settings |= {"choices": [*choices[word], []], "metavar": word}
        if isinstance(default, bool):
            settings = {"action": "store_true"}
        made.add_argument(word if name in names else f"--{name}", default=default, **settings)
    return made
