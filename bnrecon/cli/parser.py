"""The argument parser that all commands share: one line for a mistake, no abbreviations."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from bnrecon.runtime.errors import UserError, nearest

__all__ = ["Parser"]


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises ``UserError`` and allows options between arguments."""

    def __init__(self, **settings: object) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=layout, **settings)  # type: ignore[arg-type] # handed on as they are

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words of one command.

        Raises:
            UserError: for an option that there is not, or a value that is missing or not allowed.
        """
        given, unknown = self.parse_known_intermixed_args(list(words))
        for word in unknown:
            if word.startswith("--") and "=" in word and word.partition("=")[0] not in self.flags:
                advice = f"options are written without dashes, as in {word.lstrip('-')}"
                raise UserError(f"{word}: {advice}")
            long = [flag for flag in self.flags if flag.startswith("--")]
            raise UserError(
                f"{word} is not an option: {nearest(word, long)}; {self.prog} --help explains them"
            )
        return given

    @property
    def flags(self) -> list[str]:
        """All option strings, as ``-m`` and ``--multirun``."""
        return list(self._option_string_actions)

    def print_help(self, file: Any = None) -> None:
        """Print the help; argparse's own hides that the output cannot be written."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Raise ``UserError`` in the place of printing the usage."""
        raise UserError(f"{message}; {self.prog} --help shows what there is")
