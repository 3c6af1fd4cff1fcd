"""The argument parser of all commands: one line for a mistake, no abbreviations."""

from __future__ import annotations

import argparse
import importlib.resources
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from bnrecon.runtime.errors import UserError, nearest


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises ``UserError`` and allows options between arguments."""

    explain: Callable[[argparse.Namespace], str] | None = None  # text that help adds

    def __init__(self, **settings: object) -> None:
        layout = argparse.RawDescriptionHelpFormatter
        super().__init__(allow_abbrev=False, formatter_class=layout, **settings)  # type: ignore[arg-type] # passed on unchanged

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words of one command.

        Raises:
            UserError: for an unknown option, or a value that is missing or not allowed.
        """
        arguments, unknown = self.parse_known_intermixed_args(list(words))
        for word in unknown:
            if word.startswith("--") and "=" in word and word.partition("=")[0] not in self.flags:
                advice = f"options are written without dashes, as in {word.lstrip('-')}"
                raise UserError(f"{word}: {advice}")
            long = [flag for flag in self.flags if flag.startswith("--")]
            raise UserError(
                f"{word} is not an option: {nearest(word, long)}; {self.prog} --help explains them"
            )
        return arguments

    def help_for(self, arguments: argparse.Namespace) -> str:
        """The help, with what ``explain`` adds for these arguments."""
        more = f"\n{self.explain(arguments)}" if self.explain is not None else ""
        return f"{self.format_help()}{more}".rstrip("\n")

    @property
    def flags(self) -> list[str]:
        """All option strings, as ``-m`` and ``--multirun``."""
        return list(self._option_string_actions)

    def print_help(self, file: Any = None) -> None:
        """Print the help; argparse's method hides errors in writing it."""
        (file or sys.stdout).write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """Raise ``UserError`` instead of printing the usage."""
        raise UserError(f"{message}; see {self.prog} --help")


class Commands:
    """The commands of a parser, and the flags that all of them take."""

    def __init__(self, parser: Parser, shared: Parser) -> None:
        self._shared = shared
        self._commands = parser.add_subparsers(
            metavar="COMMAND", title="commands", parser_class=Parser
        )

    @property
    def parsers(self) -> dict[str, Parser]:
        """The parser of each command, by its name."""
        return dict(self._commands.choices)

    def add(self, name: str, function: Callable[[argparse.Namespace], int]) -> Parser:
        """Add a command whose function reads its words, and return its parser.

        The command's text has a usage line (what follows the name, without the shared flags), a
        line for the list of commands, then the help before its flags, and the help after them.
        """
        head, description, *rest = text(f"{name}.txt").split("\n\n")
        usage, summary = head.splitlines()
        parser = self._commands.add_parser(
            name,
            parents=[self._shared],
            add_help=False,  # added below: the words after it are needed too
            help=summary,
            usage=f"bnrecon {name} {usage} [-q] [-v] [-h]",
            description=description,
            epilog="\n\n".join(rest),
        )
        parser.add_argument("-h", "--help", action="store_true", help="show this help and exit")
        parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
        parser.set_defaults(function=function, parser=parser)
        return parser


def add_detach(parser: Parser, prefix: str) -> None:
    """Add ``--detach`` to a command whose work cluster jobs may do."""
    more = "exit once the jobs are submitted; run the same command again to collect the results"
    parser.add_argument("--detach", action="store_true", help=f"{prefix} cluster=: {more}")


def text(name: str) -> str:
    """The content of a file in ``texts``."""
    file = importlib.resources.files("bnrecon.cli") / "texts" / name
    return file.read_text(encoding="utf-8").strip()
