"""`bnrecon ls`: the contents of an outputs folder with their state, one per line."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from bnrecon.cli import exit_codes, output
from bnrecon.cli.parser import Commands
from bnrecon.cli.words import outputs_folder, split
from bnrecon.runtime.errors import UserError, printable
from bnrecon.runtime.shipped import shipped_outputs
from bnrecon.runtime.units import format_bytes

if TYPE_CHECKING:
    from bnrecon.reporting.inventory import RunEntry, TargetEntry
    from bnrecon.reproduction.study_status import StudyStatus

OPTIONS = ("outputs",)
KINDS = ("runs", "targets", "studies")


def add_commands(commands: Commands) -> None:
    """Add `ls`."""
    json_help = "print it as JSON, for scripts"
    commands.add("ls", _list).add_argument("--json", action="store_true", help=json_help)


def _list(arguments: argparse.Namespace) -> int:
    """List the contents, or print them as JSON."""
    kinds, folder = _read_listing(arguments.words)
    entries = _find_entries(folder, kinds)
    if arguments.json:
        rows = {kind: [_plain(entry) for entry in entries[kind]] for kind in kinds}
        output.write(json.dumps({"outputs": str(folder), **rows}, indent=1))
        return exit_codes.DONE
    if not any(entries.values()):
        _explain_empty(folder, kinds)
    output.write("\n\n".join(_section(kind, rows) for kind, rows in entries.items() if rows))
    return exit_codes.DONE


def _read_listing(words: Sequence[str]) -> tuple[Sequence[str], Path]:
    """The types of entries to list, and the folder."""
    names, options = split(words, OPTIONS)
    kinds = [name for name in names if name in KINDS]
    folders = [*(name for name in names if name not in KINDS), *options.values()]
    if len(folders) > 1:
        raise UserError(f"ls {' '.join(words)}: give one folder; bnrecon ls --help says more")
    return kinds or KINDS, outputs_folder(folders[0] if folders else None, KINDS)


def _find_entries(folder: Path, kinds: Sequence[str]) -> dict[str, list[Any]]:
    """The entries by type; a user's runs and targets come before the shipped ones."""
    from bnrecon.reporting import inventory

    shipped = shipped_outputs(folder)
    entries: dict[str, list[Any]] = {}
    for kind, look in (("runs", inventory.runs), ("targets", inventory.targets)):
        if kind in kinds:
            roots = dict.fromkeys((shipped, folder))  # one folder in a checkout
            by_name = {entry.name: entry for root in roots for entry in look(root)}
            entries[kind] = [by_name[name] for name in sorted(by_name)]
    if "studies" in kinds:
        from bnrecon.reproduction.study_status import studies
        from bnrecon.studies import registry

        parts = {name: registry.find(name).parts for name in registry.STUDIES}
        entries["studies"] = studies(folder, shipped, parts)
    return entries


def _explain_empty(folder: Path, kinds: Sequence[str]) -> None:
    """Raise ``UserError`` for a folder without results, with a suggestion."""
    for name, what in (("result.json", "run"), ("target.json", "target")):
        if (folder / name).exists():
            raise UserError(f"{folder} is a {what}; give the outputs folder that contains it")
        if next(folder.glob(f"*/{name}"), None):
            raise UserError(f"{folder} contains {what}s itself; give {folder.resolve().parent}")
    command = "study NAME" if kinds == ["studies"] else "run"
    raise UserError(
        f"{folder} holds no {' and no '.join(kinds)}; "
        f"to make some: bnrecon {command} outputs={folder}"
    )


def _plain(entry: RunEntry | TargetEntry | StudyStatus) -> dict[str, Any]:
    """An entry as JSON values."""
    row = dataclasses.asdict(entry) | {"folder": str(entry.folder)}
    if (progress := row.pop("progress", None)) is not None:
        row["last_command"] = progress
    return row


def _section(kind: str, entries: Sequence[Any]) -> str:
    """Entries of one type as columns, under a line that counts them by state."""
    states = [entry.state for entry in entries]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    size = sum({entry.folder: entry.size for entry in entries}.values())
    columns = {
        title: [printable(text(e)) for e in entries] for title, text in COLUMNS[kind].items()
    }
    used = {title: cells for title, cells in columns.items() if any(cells)}
    alignment = ["right" if title.startswith(">") else "left" for title in used]
    columns = {title.lstrip(">"): cells for title, cells in used.items()}
    table = tabulate(columns, "keys", "plain", colalign=alignment, disable_numparse=True)
    return f"{kind}: {counts}; {format_bytes(size)}\n{table}"


def _of(done: int | None, total: int | None) -> str:
    return "" if done is None else f"{done}/{'?' if total is None else total}"


def _percent(value: float | None) -> str:
    """A percentage; zero has no sign.

    >>> _percent(92.305), _percent(-0.0000001), _percent(None)
    ('92.31', '0.00', '')
    """
    return "" if value is None else f"{value:z.2f}"


def _last_command(study: StudyStatus) -> str:
    if (progress := study.progress) is None:
        return study.problem
    return f"{progress.finished} of {progress.total} done, {len(progress.failed)} failed"


# The content of each column, by its title; ">" aligns it to the right.
COLUMNS: dict[str, dict[str, Callable[[Any], str]]] = {
    "runs": {
        "run": lambda run: run.name,
        "state": lambda run: run.state,
        ">seeds": lambda run: _of(run.seeds_done, run.seeds),
        ">target %": lambda run: _percent(run.target_accuracy),
        ">loss": lambda run: _percent(run.loss),
        ">size": lambda run: format_bytes(run.size),
        "": lambda run: run.detail or ("shipped" if run.shipped else ""),
    },
    "targets": {
        "target": lambda target: target.name,
        "state": lambda target: target.state,
        ">accuracy %": lambda target: _percent(target.accuracy),
        ">epochs": lambda target: _of(target.epochs_done, target.epochs),
        ">size": lambda target: format_bytes(target.size),
        "": lambda target: target.detail,
    },
    "studies": {
        "study": lambda study: study.study,
        "scale": lambda study: study.scale,
        "state": lambda study: study.state,
        ">parts": lambda study: _of(study.parts_begun, study.parts),
        ">tasks stored": lambda study: (
            f"{study.tasks}{f' ({study.set_aside} damaged)' if study.set_aside else ''}"
        ),
        "last command": _last_command,
        ">size": lambda study: format_bytes(study.size),
        "": lambda study: "shipped" if study.shipped else "",
    },
}
