"""`bnrecon ls`: what lies in an outputs folder, a line each, with its state."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnrecon.cli import exit_codes, output
from bnrecon.cli.columns import Column, layout, line_width
from bnrecon.cli.parser import Commands
from bnrecon.cli.words import given_folder, split
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.shipped import shipped_outputs
from bnrecon.runtime.units import format_bytes

if TYPE_CHECKING:
    from bnrecon.reporting.inventory import RunEntry, TargetEntry
    from bnrecon.reproduction.study_status import StudyStatus

__all__ = ["KINDS", "OPTIONS", "add_commands"]

OPTIONS = ("outputs",)
KINDS = ("runs", "targets", "studies")

RUN_COLUMNS = (
    Column("run", shorten="middle"),
    Column("state", shorten="end"),
    Column("seeds", right=True, optional=True),
    Column("target %", right=True),
    Column("loss", right=True),
    Column("size", right=True, optional=True),
    Column("", optional=True),
)
TARGET_COLUMNS = (
    Column("target", shorten="middle"),
    Column("state", shorten="end"),
    Column("accuracy %", right=True),
    Column("epochs", right=True, optional=True),
    Column("size", right=True, optional=True),
)
STUDY_COLUMNS = (
    Column("study", shorten="middle"),
    Column("scale"),
    Column("state", shorten="end"),
    Column("parts", right=True, optional=True),
    Column("tasks stored", right=True, optional=True),
    Column("last command", shorten="end", optional=True),
    Column("size", right=True, optional=True),
    Column("", optional=True),
)

LS = """\
FOLDER is what outputs= was, or outputs=FOLDER; runs, targets or studies lists these alone.
seeds: finished of all; loss: target less source accuracy in percent, the mean over seeds;
shipped: only the result is there. bnrecon tables compares runs, bnrecon status says how far a
study is."""


def add_commands(commands: Commands) -> None:
    """Add `ls`."""
    commands.add(
        "ls",
        _list,
        "[FOLDER] [runs|targets|studies] [--json]",
        "list runs, targets and studies with their state",
        description="List what lies in an outputs folder, a line each, with its state.",
        epilog=LS,
    ).add_argument("--json", action="store_true", help="print it as JSON, for scripts")


def _list(given: argparse.Namespace) -> int:
    """List what there is, or print it as JSON."""
    kinds, folder = _read_listing(given.words)
    found = _find(folder, kinds)
    if given.json:
        rows = {kind: [_plain(entry) for entry in found[kind]] for kind in kinds}
        output.write(json.dumps({"outputs": str(folder), **rows}, indent=1))
        return exit_codes.DONE
    if not any(found.values()):
        _explain_empty(folder, kinds)
    output.write("\n\n".join(_section(kind, rows) for kind, rows in found.items() if rows))
    return exit_codes.DONE


def _read_listing(words: Sequence[str]) -> tuple[Sequence[str], Path]:
    """The kinds to list, and the folder."""
    names, options = split(words, OPTIONS)
    kinds = [name for name in names if name in KINDS]
    folders = [*(name for name in names if name not in KINDS), *options.values()]
    if len(folders) > 1:
        raise UserError(f"ls {' '.join(words)}: give one folder; bnrecon ls --help says more")
    return kinds or KINDS, given_folder(folders[0] if folders else None, KINDS)


def _find(folder: Path, kinds: Sequence[str]) -> dict[str, list[Any]]:
    """The entries of each kind; of runs and targets one's own before those that ship."""
    from bnrecon.reporting import inventory

    shipped = shipped_outputs(folder)
    found: dict[str, list[Any]] = {}
    for kind, look in (("runs", inventory.runs), ("targets", inventory.targets)):
        if kind in kinds:
            entries = {entry.name: entry for entry in (*look(shipped), *look(folder))}
            found[kind] = [entries[name] for name in sorted(entries)]
    if "studies" in kinds:
        from bnrecon.reproduction.study_status import studies
        from bnrecon.studies import registry

        known = {name: registry.find(name).parts for name in registry.STUDIES}
        found["studies"] = studies(folder, shipped, known)
    return found


def _explain_empty(folder: Path, kinds: Sequence[str]) -> None:
    """Raise ``UserError`` for a folder without results, with what may have been meant."""
    for name, what in (("result.json", "run"), ("target.json", "target")):
        if (folder / name).exists():
            raise UserError(f"{folder} is a {what}; give the outputs folder that it lies in")
        if next(folder.glob(f"*/{name}"), None):
            raise UserError(f"{folder} holds {what}s themselves; give {folder.resolve().parent}")
    command = "study NAME" if kinds == ["studies"] else "run"
    raise UserError(
        f"{folder} holds no {' and no '.join(kinds)}; "
        f"to make some: bnrecon {command} outputs={folder}"
    )


def _plain(entry: RunEntry | TargetEntry | StudyStatus) -> dict[str, Any]:
    """An entry for a script."""
    row = {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
    progress = row.pop("progress", None)
    if progress is not None:
        row["last_command"] = dataclasses.asdict(progress)
    return row | {"folder": str(entry.folder)}


def _section(kind: str, entries: Sequence[Any]) -> str:
    """One kind's entries as columns, under a line that counts them."""
    columns = {"runs": RUN_COLUMNS, "targets": TARGET_COLUMNS, "studies": STUDY_COLUMNS}[kind]
    size = sum({entry.folder: entry.size for entry in entries}.values())
    return (
        f"{kind}: {_count_states(entries)}; {format_bytes(size)}\n"
        f"{layout(columns, [ROWS[kind](entry) for entry in entries], line_width())}"
    )


def _count_states(entries: Sequence[Any]) -> str:
    """How many are in each state.

    >>> from types import SimpleNamespace as Entry
    >>> _count_states([Entry(state="finished"), Entry(state="damaged"), Entry(state="finished")])
    '2 finished, 1 damaged'
    """
    states = [entry.state for entry in entries]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))


def _run_row(run: RunEntry) -> list[str]:
    return [
        run.name,
        _state(run),
        f"{run.seeds_done}/{'?' if run.seeds is None else run.seeds}",
        _percent(run.target_accuracy),
        _percent(run.loss),
        format_bytes(run.size),
        "shipped" if run.shipped else "",
    ]


def _target_row(target: TargetEntry) -> list[str]:
    epochs = ""
    if target.epochs_done is not None:
        epochs = f"{target.epochs_done}/{'?' if target.epochs is None else target.epochs}"
    return [
        target.name,
        _state(target),
        _percent(target.accuracy),
        epochs,
        format_bytes(target.size),
    ]


def _study_row(study: StudyStatus) -> list[str]:
    last = study.problem
    if (progress := study.progress) is not None:
        last = f"{progress.finished} of {progress.total} done, {len(progress.failed)} failed"
    aside = f" ({study.set_aside} damaged)" if study.set_aside else ""
    return [
        study.study,
        study.scale,
        study.state,
        f"{study.parts_begun}/{'?' if study.parts is None else study.parts}",
        f"{study.tasks}{aside}",
        last,
        format_bytes(study.size),
        "shipped" if study.shipped else "",
    ]


def _state(entry: RunEntry | TargetEntry) -> str:
    return f"{entry.state}: {entry.detail}" if entry.detail else entry.state


def _percent(value: float | None) -> str:
    """A number of percent; zero has no sign.

    >>> _percent(92.305), _percent(-0.0000001), _percent(None)
    ('92.31', '0.00', '')
    """
    return "" if value is None else f"{value:z.2f}"


ROWS: dict[str, Callable[[Any], list[str]]] = {
    "runs": _run_row,
    "targets": _target_row,
    "studies": _study_row,
}
