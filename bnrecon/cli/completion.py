"""Tab completion for bash, zsh and fish: commands, options and their values, studies and parts.

A shell's script hands the line up to the cursor to ``bnrecon completion SHELL LINE`` and is given
the words that fit, one on each line. Nothing here loads torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.resources
import itertools
import logging
import re
import shlex
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bnrecon.cli import exit_codes, output
from bnrecon.cli.listing import KINDS
from bnrecon.cli.parser import Parser

__all__ = ["add_commands", "complete"]

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
    """Add `completion` to the parser's commands."""
    parser = commands.add_parser(
        "completion",
        parents=[shared],
        help="print the script for tab completion in a shell",
        description='Print the script for tab completion: eval "$(bnrecon completion bash)" in\n'
        "~/.bashrc or ~/.zshrc, or in fish: bnrecon completion fish | source",
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS))
    parser.add_argument("line", nargs="?", help=argparse.SUPPRESS)
    parser.set_defaults(function=_print)


def _print(given: argparse.Namespace) -> int:
    """Print a shell's script, or what completes a line."""
    if given.line is None:
        output.write(SCRIPTS[given.shell].strip())
        return exit_codes.DONE
    from bnrecon.cli.main import make_parsers

    try:
        found = complete(given.line, make_parsers()[1])
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
    if word.startswith("-") and "=" not in word:
        return _starting(word, commands[command].flags)
    if before and before[-1] in ("--config-dir", "-cd"):
        return folders(word)
    if word.startswith("--config-dir="):
        return [f"--config-dir={folder}" for folder in folders(word.partition("=")[2])]
    if before and before[-1] == "--import":
        return archives(word)
    if word.startswith("--import="):
        return [f"--import={found}" for found in archives(word.partition("=")[2])]
    if command == "completion":
        return _starting(word, SCRIPTS)
    own: dict[str, Callable[[str, list[str], str], list[str]]] = {}
    own |= dict.fromkeys(("study", "tables", "figures"), _complete_study)
    own |= dict.fromkeys(("ls", "compare", "status"), _complete_look) | {"export": _complete_export}
    own |= {"cancel": _complete_cancel, "report": _complete_report}
    if command in own:
        return own[command](command, before, word)
    return _complete_option(before, word, sweep=command == "run")


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
    return [path for path in _paths(prefix) if path.endswith("/")]


def archives(prefix: str) -> list[str]:
    """The folders and zip files that a path can go on to."""
    return [path for path in _paths(prefix) if path.endswith(("/", ".zip"))]


def _paths(prefix: str) -> list[str]:
    parent = prefix.rpartition("/")[0] + "/" if "/" in prefix else ""
    try:
        found = list(Path(parent or ".").expanduser().iterdir())
        names = [f"{parent}{place.name}{'/' if place.is_dir() else ''}" for place in found]
    except OSError:
        return []
    hidden = prefix.rpartition("/")[2].startswith(".")
    return _starting(prefix, [name for name in names if hidden or "/." not in f"/{name}"])


def _complete_look(command: str, before: list[str], word: str) -> list[str]:
    """What `ls`, `compare` and `status` take: kinds of results, runs, studies; and folders."""
    if word.startswith("outputs="):
        return [f"outputs={folder}" for folder in folders(word.partition("=")[2])]
    from bnrecon.studies.registry import STUDIES

    outputs = [other.partition("=")[2] for other in before if other.startswith("outputs=")]
    known = {
        "ls": KINDS,
        "compare": folder_names(Path(*(outputs[-1:] or ["outputs"]), "runs")),
        "status": STUDIES,
    }[command]
    names = [name for name in known if name not in before]
    return _starting(word, [*names, "outputs="]) + (folders(word) if command != "status" else [])


def _complete_report(command: str, before: list[str], word: str) -> list[str]:
    """Studies and options of `report`, and the file that it writes."""
    from bnrecon.studies.registry import STUDIES

    if before and before[-1] == "--output":
        return _paths(word)
    if word.startswith("--output="):
        return [f"--output={found}" for found in _paths(word.partition("=")[2])]
    if "=" in word:
        return _complete_study(command, [STUDIES[0]], word)
    names = _starting(word, [name for name in STUDIES if name not in before])
    return names + _complete_option(before, word, False, ["scale="])


def folder_names(parent: Path) -> list[str]:
    """The names of the folders in a folder; none where it cannot be read."""
    try:
        return [place.name for place in parent.iterdir() if place.is_dir()]
    except OSError:
        return []


def _complete_study(command: str, before: list[str], word: str) -> list[str]:
    """A study's name, then its parts, its own options and those of its runs."""
    from bnrecon.reproduction.study import SCALES
    from bnrecon.studies import registry

    names = [name for other in before if (name := other.removeprefix("study=")) in registry.STUDIES]
    if not names:
        found = _starting(word, registry.STUDIES)
        return found + (folders(word) if command == "tables" else [])
    if "=" in word:
        own = {"scale": SCALES, "jobs": ("1", "2", "4"), "cluster": ("local", "slurm")}
        name, _, value = word.partition("=")
        if name in own:
            return [f"{name}={known}" for known in _starting(value, own[name])]
        return _complete_option(before, word, sweep=False)
    study = registry.find(names[0])
    parts = [part for part in (*study.parts, *study.solvers) if part not in before]
    own_options = ["scale="]
    if command == "study":
        own_options += ["jobs=", *_cluster_options(before)]
    return _starting(word, parts) + _complete_option(before, word, False, own_options)


def _cluster_options(before: list[str]) -> list[str]:
    """What a study takes of a cluster; Slurm's settings once it is named."""
    if "cluster=slurm" not in before:
        return ["cluster="]
    from bnrecon.config.cluster_settings import NAMES

    return ["minutes_per_job=", *(f"slurm.{name}=" for name in NAMES)]


def _complete_cancel(_: str, before: list[str], word: str) -> list[str]:
    """The names of studies, a scale, and the folder of outputs."""
    from bnrecon.reproduction.study import SCALES
    from bnrecon.studies.registry import STUDIES

    if word.startswith("outputs="):
        return [f"outputs={folder}" for folder in folders(word.partition("=")[2])]
    if word.startswith("scale="):
        return _starting(word, [f"scale={scale}" for scale in SCALES])
    return _starting(
        word, [name for name in STUDIES if name not in before] + ["scale=", "outputs="]
    )


def _complete_export(_: str, before: list[str], word: str) -> list[str]:
    """A tracker's name, then folders, the names of runs and targets, and the few options."""
    from bnrecon.cli.export import OPTIONS
    from bnrecon.runtime.tracker_libraries import NAMES

    if not before:
        return _starting(word, NAMES)
    if "=" in word:
        return _complete_option(before, word, sweep=False)
    given = [option.partition("=")[2] for option in before if option.startswith("outputs=")]
    places = [Path(given[0] if given else "outputs") / kind for kind in ("runs", "targets")]
    names = [found.name for place in places if place.is_dir() for found in place.iterdir()]
    options = [f"{name}=" for name in OPTIONS]
    return _starting(word, options) + folders(word) + _starting(word, names) * bool(word)


def _complete_option(
    before: list[str], word: str, sweep: bool, further: Iterable[str] = ()
) -> list[str]:
    """An option's name with its equals sign, or its value; in a sweep, values after a comma."""
    values = _values(before)
    name, equals, value = word.partition("=")
    if not equals:
        # Before anything is typed, the options that are not part of a group will do.
        names = (name for name in values if word or "." not in name)
        return _starting(word, {*(f"{name}=" for name in names), *further})
    known = values.get(name.lstrip("+"))
    if known is None:
        return []
    done, comma, last = value.rpartition(",") if sweep else ("", "", value)
    return [f"{name}={done}{comma}{found}" for found in known(last)]


def _values(before: list[str]) -> dict[str, Callable[[str], list[str]]]:
    """What completes each option's value, by the option's name."""
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


def _field_values(spec: type) -> dict[str, Callable[[str], list[str]]]:
    """What completes the value of each of a spec's fields."""
    from bnrecon.runtime.options import field_types

    kinds = field_types(spec)
    found: dict[str, Callable[[str], list[str]]] = {}
    for field in dataclasses.fields(spec):
        allowed = list(map(str, field.metadata.get("allowed", ())))
        if bool in kinds[field.name]:
            allowed = ["true", "false"]
        found[field.name] = folders if field.metadata.get("folder") else _one_of(allowed)
    return found


def _one_of(names: Iterable[str]) -> Callable[[str], list[str]]:
    names = list(names)
    return lambda prefix: _starting(prefix, names)


def _yaml_names(group: str, before: list[str]) -> list[str]:
    """The choices of a group: yaml files of the package, and of ``--config-dir``."""
    places = [importlib.resources.files("bnrecon.configs") / group]
    for word, following in itertools.zip_longest(before, before[1:], fillvalue=""):
        if word.startswith("--config-dir="):
            places.append(Path(word.partition("=")[2]) / group)
        elif word in ("--config-dir", "-cd"):
            places.append(Path(following) / group)
    files = [file.name for place in places if place.is_dir() for file in place.iterdir()]
    return sorted({name[:-5] for name in files if name.endswith(".yaml")})
