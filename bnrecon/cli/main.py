"""The `bnrecon` command: its parser, and the dispatch from a command's name to its function."""

from __future__ import annotations

import importlib.metadata
import logging
import sys
from collections.abc import Sequence

from bnrecon.cli import (
    compare,
    completion,
    exit_codes,
    export,
    listing,
    output,
    report,
    runs,
    status,
    studies,
)
from bnrecon.cli.parser import Commands, Parser, text
from bnrecon.runtime import interruption, provenance
from bnrecon.runtime.environment import environment, short_waits
from bnrecon.runtime.errors import UserError, nearest

logger = logging.getLogger("bnrecon")  # the whole package's; flags set its level


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``argv`` is ``sys.argv[1:]`` by default.

    >>> main(["--version"])
    0.1.0
    0
    """
    words = list(sys.argv[1:] if argv is None else argv)
    with (
        environment(**short_waits()),
        interruption.handle_signals(),
        output.tolerant_streams(),
        output.log_to_stderr(),
        provenance.started_as(words),
    ):
        code = _run_command(words)
        try:
            sys.stdout.flush()
        except OSError as error:  # the reader has exited, or the disk is full
            if code == exit_codes.DONE:
                code = exit_codes.report(error)
            exit_codes.drop_output()
        try:
            sys.stderr.flush()
        except OSError:  # a lost log message does not change the exit code
            exit_codes.drop_output(2)
    return code


def _run_command(words: list[str]) -> int:
    parser, commands = make_parsers()
    try:
        options, command, rest = _split(words)
        before = parser.parse_args(options)
        if before.version:
            output.write(importlib.metadata.version("bnrecon"))
            return exit_codes.DONE
        if command is None:
            parser.print_help()
            return exit_codes.MISTAKE
        if command not in commands:
            raise UserError(_explain_command(command, commands))
        arguments = commands[command].read(rest)
        if arguments.help:
            output.write(arguments.parser.help_for(arguments))
            return exit_codes.DONE
        if before.verbose or arguments.verbose:
            logger.setLevel(logging.DEBUG)
        elif before.quiet or arguments.quiet:
            logger.setLevel(logging.WARNING)
        return arguments.function(arguments)
    except BaseException as error:
        return exit_codes.report(error)


def make_parsers() -> tuple[Parser, dict[str, Parser]]:
    """The parser of options before a command, and one parser for each command."""
    shared = Parser(add_help=False)
    shared.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    shared.add_argument("-v", "--verbose", action="store_true", help="show details")
    description, _, epilog = text("bnrecon.txt").partition("\n\n")
    parser = Parser(prog="bnrecon", description=description, epilog=epilog, parents=[shared])
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    commands = Commands(parser, shared)
    for module in (runs, studies, status, report, listing, compare, export, completion):
        module.add_commands(commands)
    return parser, commands.parsers


def _split(words: list[str]) -> tuple[list[str], str | None, list[str]]:
    """The options before the command, the command, and the words after it."""
    for number, word in enumerate(words):
        if word == "help" and not number:
            return ["--help"], None, []
        if not word.startswith("-"):
            return words[:number], word, words[number + 1 :]
        if "=" in word:
            raise UserError(_explain_command(word, ()))
    return words, None, []


def _explain_command(word: str, commands: Sequence[str] | dict[str, Parser]) -> str:
    if "=" in word:
        name, option = word.lstrip("-").partition("=")[0], word.lstrip("-")
        example = "target=vgg18" if name in commands else option
        return f"{word}: options follow a command, as in: bnrecon run {example}"
    if word in ("version", "quiet", "verbose"):
        return f"{word}: no such command; did you mean bnrecon --{word}?"
    return f"{word}: no such command: {nearest(word, commands)}; see bnrecon --help"
