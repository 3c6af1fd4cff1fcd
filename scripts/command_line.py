"""The command line of a script: its docstring is the help, its options are named by defaults."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def parser(
    doc: str | None, *names: str, choices: Mapping[str, Iterable[str]] = {}, **options: Any
) -> argparse.ArgumentParser:
    """A parser of positional arguments and of options.

    A name that ends in ``*`` takes any number of arguments. The kind of an option is its default's:
    a flag, a number, a path, words, or several of them for a list. ``choices`` are the words that
    are allowed, by name.
    """
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def kind(name: str, example: Any = "") -> Callable[[str], Any]:
        def word(text: str) -> str:
            if text not in choices[name]:
                raise argparse.ArgumentTypeError(f"{text}: there are {', '.join(choices[name])}")
            return text

        return word if name in choices else type(example)

    for name in names:
        several = {"nargs": "*"} if name.endswith("*") else {}
        made.add_argument(name.rstrip("*"), type=kind(name.rstrip("*")), **several)
    for name, default in options.items():
        settings = {"type": kind(name, default)}
        if isinstance(default, bool):
            settings = {"action": "store_true"}
        elif isinstance(default, list):
            settings = {"nargs": "*", "type": kind(name, *default[:1])}
        made.add_argument(f"--{name.replace('_', '-')}", default=default, **settings)
    return made
