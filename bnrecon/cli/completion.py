"""Tab completion for bash, zsh and fish: commands, studies and parts, options and their values.

A shell's script passes the line up to the cursor to ``bnrecon completion SHELL LINE``, which prints
the matching words, one per line. If there are none, the shell completes file names.
Nothing here loads torch.
"""

from __future__ import annotations

import argparse
import functools
import logging
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from bnrecon.cli import compare, exit_codes, export, listing, output, status
from bnrecon.cli.parser import Commands, Parser, text
from bnrecon.runtime import extras
from bnrecon.runtime.errors import require_choice

logger = logging.getLogger(__name__)

SHELLS = ("bash", "fish", "zsh")
PATHS = ("--config-dir", "-cd", "--output")  # flags that take a path


def add_commands(commands: Commands) -> None:
    """Add `completion`, which completes all commands."""
    commands.add("completion", functools.partial(_print, commands))


def _print(commands: Commands, arguments: argparse.Namespace) -> int:
    """Print a shell's script, or the completions of a line."""
    shell, *lines = arguments.words or [""]
    require_choice("completion ", shell, SHELLS)
    if not lines:
        output.write(text(f"completion.{shell}"))
        return exit_codes.DONE
    try:
        words = complete(lines[0], commands.parsers)
    except Exception:  # a prompt must not show an error
        logger.debug("no completion of %r", lines[0], exc_info=True)
        return exit_codes.FAILED
    if shell == "bash":  # it splits words at `=` and `:`, and replaces only the last part
        prefix = re.sub(r"[^=:]*$", "", _split(lines[0])[-1])
        words = [word[len(prefix) :] for word in words]
    if words:
        output.write("\n".join(words))
    return exit_codes.DONE


def complete(line: str, commands: Mapping[str, Parser]) -> list[str]:
    """The full completions, in order, of a line's last word, which may be empty."""
    *before, word = _split(line)[1:] or [""]
    before = [other for other in before if other not in ("-q", "--quiet", "-v", "--verbose")]
    if not before:
        return _starting(word, [*commands, "--help", "--version"])
    command, *before = before
    if command not in commands or (before and before[-1] in PATHS):
        return []
    if word.startswith("-"):
        return _starting(word, commands[command].flags)
    names, options = _words_of(command, before)
    name, equals, value = word.partition("=")
    if equals:  # in a sweep, complete the last of several values
        done, comma, last = value.rpartition(",")
        allowed = _starting(last, options.get(name.lstrip("+"), ()))
        return [f"{name}={done}{comma}{choice}" for choice in allowed]
    # Before anything is typed, offer only options outside groups.
    shown = [f"{option}=" for option in options if word or "." not in option]
    return _starting(word, set(names) - set(before)) + _starting(word, shown)


def _split(line: str) -> list[str]:
    """The words of a line, split as by a shell; the last one is empty after a blank."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote
        words = line.replace("'", "").replace('"', "").split()
    return [*words, ""] if line[-1:].isspace() else words


def _starting(prefix: str, words: Iterable[str]) -> list[str]:
    return sorted(word for word in words if word.startswith(prefix))


Options = dict[str, tuple[str, ...]]  # values of each option; empty if they cannot be listed


def _words_of(command: str, before: Sequence[str]) -> tuple[Iterable[str], Options]:
    """The names and options that a command takes after the words ``before``."""
    from bnrecon.studies import registry

    of_runs = _options_of_runs()
    match command:
        case "study" | "tables" | "figures":
            words = [word.removeprefix("study=") for word in before]
            chosen = next((word for word in words if word in registry.STUDIES), None)
            if chosen is None:
                return registry.STUDIES, {}
            study = registry.find(chosen)
            executors = _job_options(before) if command == "study" else {}
            return (*study.parts, *study.solvers), of_runs | executors
        case "run" | "train":
            return (), of_runs | (_job_options(before) if {"-m", "--multirun"} & {*before} else {})
        case "report":
            return registry.STUDIES, of_runs
    names, options = {
        "status": (registry.STUDIES, status.OPTIONS),
        "cancel": (registry.STUDIES, status.CANCEL_OPTIONS),
        "ls": (listing.KINDS, listing.OPTIONS),
        "compare": ((), compare.OPTIONS),
        "export": ((), export.OPTIONS) if before else (extras.TRACKERS, ()),
        "completion": (SHELLS, ()),
    }[command]
    return names, {option: of_runs.get(option, ()) for option in options}


def _job_options(before: Sequence[str]) -> Options:
    """The options that choose who computes a study or a sweep."""
    from bnrecon.config import cluster_settings

    if "cluster=slurm" not in before:
        return {"jobs": ("1", "2", "4"), "cluster": ("local", "slurm")}
    return {"minutes_per_job": (), **{f"slurm.{name}": () for name in cluster_settings.NAMES}}


def _options_of_runs() -> Options:
    from bnrecon.config import help, schema
    from bnrecon.targets.spec import TARGETS

    choices = {group: tuple(help.choices(group)) for group in schema.GROUPS}
    allowed = {option.name: option.allowed for option in help.options()}
    names = {f"{group}.name": choices[group] for group in schema.SPECS}
    special = {
        "target.features": (*choices["features"], "none"),
        "target.family": tuple(TARGETS),
    }
    return allowed | {name: names[name] for name in names.keys() & allowed} | special | choices
