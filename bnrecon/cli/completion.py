"""Tab completion for bash, zsh and fish: commands, options and their values, studies and parts.

A shell's script hands the line up to the cursor to ``bnrecon completion SHELL LINE`` and is given
the words that fit, one on each line. Nothing here loads torch.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib.resources
import itertools
import logging
import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bnrecon.cli import cluster, compare, exit_codes, export, listing, output, status
from bnrecon.cli.parser import Parser
from bnrecon.runtime import extras

__all__ = ["add_commands", "complete"]

Completer = Callable[[str], list[str]]  # from the beginning of a value to all that it can be

logger = logging.getLogger(__name__)


BASH = r"""
_bnrecon() {
    local found IFS=$'\n'
    COMPREPLY=()
    for found in $("${COMP_WORDS[0]}" completion bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null); do
        COMPREPLY+=("$found")
        [[ $found == *[=/] ]] && compopt -o nospace
    done
}
complete -F _bnrecon bnrecon
"""


ZSH = r"""
_bnrecon() {
    local found
    for found in ${(f)"$(${words[1]} completion zsh "${(j: :)words[1,CURRENT]}" 2>/dev/null)"}; do
        if [[ $found == *[=/] ]]; then compadd -S '' -- $found; else compadd -- $found; fi
    done
}
compdef _bnrecon bnrecon
"""


FISH = r"""
complete -c bnrecon -f -a '(bnrecon completion fish (commandline -cp | string collect) 2>/dev/null)'
"""


SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def add_commands(commands: Any, shared: Parser) -> None:
    """Add `completion` to the parser's commands, all of which it then completes."""
    parser = commands.add_parser(
        "completion",
        parents=[shared],
        help="print the script for tab completion in a shell",
        description='Print the script for tab completion: eval "$(bnrecon completion bash)" in\n'
        "~/.bashrc or ~/.zshrc, or in fish: bnrecon completion fish | source",
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS))
    parser.add_argument("line", nargs="?", help=argparse.SUPPRESS)
    parser.set_defaults(function=functools.partial(_print, commands.choices))


def _print(commands: dict[str, Parser], given: argparse.Namespace) -> int:
    """Print a shell's script, or what completes a line."""
    if given.line is None:
        output.write(SCRIPTS[given.shell].strip())
        return exit_codes.DONE
    try:
        found = complete(given.line, commands)
    except Exception:  # a prompt is no place for an error: there is nothing to offer
        logger.debug("no completion of %r", given.line, exc_info=True)
        return exit_codes.FAILED
    if given.shell == "bash":
        found = [_for_bash(word, _words(given.line)[-1]) for word in found]
    if found:
        output.write("\n".join(found))
    return exit_codes.DONE


def _for_bash(found: str, word: str) -> str:
    r"""What replaces the end of a word: bash parts words at `=` and `:`, and takes text as it is.

    >>> print(_for_bash("data.root=a folder/", "data.root=a f"))
    a\ folder/
    """
    kept = len(re.sub(r"[^=:]*$", "", word))
    return re.sub(r"([^\w@%+=:,./~-])", r"\\\1", found[kept:])


def complete(line: str, commands: dict[str, Parser]) -> list[str]:
    """The words that the last word of a line can become, in order and whole.

    Args:
        line: what is typed up to the cursor, ``bnrecon`` included; the last word may be empty.
        commands: the parsers of all commands, by name.
    """
    *before, word = _words(line)[1:] or [""]
    before = [other for other in before if other not in ("-q", "--quiet", "-v", "--verbose")]
    if not before:
        return _starting(word, [*commands, "--help", "--version"])
    command, *before = before
    if command not in commands:
        return []
    name, equals, value = word.partition("=")
    if name in FLAGS and equals:
        return [f"{name}={path}" for path in FLAGS[name](value)]
    if word.startswith("-"):
        return _starting(word, commands[command].flags)
    if before and before[-1] in FLAGS:
        return FLAGS[before[-1]](word)
    taken = _taken(command, before)
    options = _options(taken, before)
    if equals and (known := options.get(name.lstrip("+"))) is not None:
        done, comma, last = value.rpartition(",") if command == "run" else ("", "", value)
        return [f"{name}={done}{comma}{found}" for found in known(last)]
    names = [other for other in taken.names if other not in before]
    # Before anything is typed, the options that are not part of a group will do.
    shown = [option for option in options if word or "." not in option or option in taken.options]
    found = _starting(word, names) + _starting(word, [f"{option}=" for option in shown])
    return found + (folders(word) if taken.folders else [])


def _words(line: str) -> list[str]:
    """The words of a line, as a shell would part them; the last one is empty behind a blank."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote
        words = line.replace("'", "").replace('"', "").split()
    return [*words, ""] if line[-1:].isspace() else words


def _starting(prefix: str, words: Iterable[str]) -> list[str]:
    return sorted(word for word in words if word.startswith(prefix))


def folders(prefix: str) -> list[str]:
    """The folders that a path can go on to, each with a slash behind it."""
    return [path for path in paths(prefix) if path.endswith("/")]


def archives(prefix: str) -> list[str]:
    """The folders and zip files that a path can go on to."""
    return [path for path in paths(prefix) if path.endswith(("/", ".zip"))]


def paths(prefix: str) -> list[str]:
    """The folders, each with a slash behind it, and files that a path can go on to."""
    parent = prefix.rpartition("/")[0] + "/" if "/" in prefix else ""
    try:
        found = list(Path(parent or ".").expanduser().iterdir())
        names = [f"{parent}{place.name}{'/' if place.is_dir() else ''}" for place in found]
    except OSError:
        return []
    hidden = prefix.rpartition("/")[2].startswith(".")
    return _starting(prefix, [name for name in names if hidden or "/." not in f"/{name}"])


# Flags whose value is a path, given behind an equals sign or as the next word.
FLAGS: dict[str, Completer] = {
    "--config-dir": folders,
    "-cd": folders,
    "--import": archives,
    "--output": paths,
}


@dataclasses.dataclass(frozen=True)
class _Taken:
    """What a command takes next.

    Args:
        names: words without an equals sign.
        options: options of its own.
        of_runs: whether it takes those of runs as well.
        folders: whether it takes a folder.
    """

    names: Iterable[str] = ()
    options: Sequence[str] = ()
    of_runs: bool = False
    folders: bool = False


def _taken(command: str, before: Sequence[str]) -> _Taken:
    """What a command takes behind the words that are there."""
    from bnrecon.studies.registry import STUDIES

    match command:
        case "study" | "tables" | "figures":
            return _taken_of_study(command, before)
        case "report":
            return _Taken(STUDIES, ("scale",), of_runs=True)
        case "status":
            return _Taken(STUDIES, status.OPTIONS)
        case "cancel":
            return _Taken(STUDIES, cluster.OPTIONS)
        case "ls":
            return _Taken(listing.KINDS, listing.OPTIONS, folders=True)
        case "compare":
            return _Taken(_stored(before, "runs"), compare.OPTIONS, folders=True)
        case "export" if before:
            return _Taken(_stored(before, "runs", "targets"), export.OPTIONS, folders=True)
        case "export":
            return _Taken(extras.TRACKERS)
        case "completion":
            return _Taken(SCRIPTS)
    sweeps = {"-m", "--multirun"} & set(before)
    return _Taken(options=_who_computes(before) if sweeps else (), of_runs=True)


def _taken_of_study(command: str, before: Sequence[str]) -> _Taken:
    """A study's name, then its parts, its own options and those of its runs."""
    from bnrecon.studies import registry

    words = [word.removeprefix("study=") for word in before]
    study = next((registry.find(word) for word in words if word in registry.STUDIES), None)
    if study is None:
        return _Taken(registry.STUDIES, folders=command == "tables")
    own = ["scale", *(_who_computes(before) if command == "study" else ())]
    return _Taken((*study.parts, *study.solvers), own, of_runs=True)


def _who_computes(before: Sequence[str]) -> list[str]:
    """The options that say who computes a study or a sweep."""
    from bnrecon.config import cluster_settings

    if "cluster=slurm" not in before:
        return ["jobs", "cluster"]
    return ["minutes_per_job", *(f"slurm.{name}" for name in cluster_settings.NAMES)]


def _stored(before: Sequence[str], *kinds: str) -> list[str]:
    """The names of runs or targets in the outputs folder; none where it cannot be read."""
    outputs = [word.partition("=")[2] for word in before if word.startswith("outputs=")]
    found: list[str] = []
    for kind in kinds:
        with contextlib.suppress(OSError):
            places = Path(*(outputs[-1:] or ["outputs"]), kind).iterdir()
            found += [place.name for place in places if place.is_dir()]
    return found


def _options(taken: _Taken, before: Sequence[str]) -> dict[str, Completer]:
    """The options that a command takes, each with what completes its value."""
    from bnrecon.reproduction.study import SCALES

    of_runs = _options_of_runs(before)
    of_studies = {
        "scale": _one_of(SCALES),
        "jobs": _one_of(("1", "2", "4")),
        "cluster": _one_of(("local", "slurm")),
    }
    known = of_runs | of_studies
    own = {name: known.get(name, _one_of(())) for name in taken.options}
    return (of_runs if taken.of_runs else {}) | own


def _options_of_runs(before: Sequence[str]) -> dict[str, Completer]:
    """The options of a run, each with what completes its value."""
    from bnrecon.config import schema

    choices = {group: _yaml_names(group, before) for group in schema.GROUPS}
    found = {group: _one_of(names) for group, names in choices.items()}
    for group in schema.SPECS:
        for spec in schema.spec_classes(group):
            for name, complete_value in _field_values(spec).items():
                found.setdefault(f"{group}.{name}", complete_value)
        if f"{group}.name" in found:
            found[f"{group}.name"] = found[group]
    found["target.features"] = _one_of([*choices["features"], "none"])
    found["target.family"] = _one_of(schema.TARGETS)
    own = _field_values(schema.RunConfig)
    return found | {name: own[name] for name in own.keys() - found.keys()}


def _field_values(spec: type) -> dict[str, Completer]:
    """What completes the value of each of a spec's fields."""
    from bnrecon.runtime.options import field_types

    kinds = field_types(spec)
    found: dict[str, Completer] = {}
    for field in dataclasses.fields(spec):
        allowed = list(map(str, field.metadata.get("allowed", ())))
        if bool in kinds[field.name]:
            allowed = ["true", "false"]
        found[field.name] = folders if field.metadata.get("folder") else _one_of(allowed)
    return found


def _one_of(names: Iterable[str]) -> Completer:
    names = list(names)
    return lambda prefix: _starting(prefix, names)


def _yaml_names(group: str, before: Sequence[str]) -> list[str]:
    """The choices of a group: yaml files of the package, and of ``--config-dir``."""
    places = [importlib.resources.files("bnrecon.configs") / group]
    for word, following in itertools.zip_longest(before, before[1:], fillvalue=""):
        if word.startswith("--config-dir="):
            places.append(Path(word.partition("=")[2]) / group)
        elif word in ("--config-dir", "-cd"):
            places.append(Path(following) / group)
    files = [file.name for place in places if place.is_dir() for file in place.iterdir()]
    return sorted({name[:-5] for name in files if name.endswith(".yaml")})
