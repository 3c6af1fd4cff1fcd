"""Run what a study lacks, and write its tables from what is there."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from tqdm import tqdm

from bnrecon.config import composition, schema
from bnrecon.data import DataSpec, load
from bnrecon.reporting import tables
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction import experiments, pictures
from bnrecon.reproduction.cells import Cell, frame, listed_cells, reconstruction_cells
from bnrecon.reproduction.experiments import compute_missing
from bnrecon.reproduction.study import Study
from bnrecon.run import estimate, main_job
from bnrecon.run.naming import run_folder
from bnrecon.runtime import digests, files, locks
from bnrecon.runtime.errors import Interrupted, RunError, UserError, nearest

__all__ = ["SOLVERS", "collect", "run_experiments", "run_missing", "shipped", "write_tables"]


SOLVERS = ("exact", "paper")


def collect(
    study: Study, scale: str, parts: Sequence[str] = (), words: Sequence[str] = ()
) -> dict[str, list[Cell]]:
    """Every cell of a study's tables at a scale, with its result where the run is finished.

    ``parts`` picks tables (``table1``), experiments (``thresholds``) or solvers (``exact``, ``paper``); ``words`` are options of every run, as ``data.root=FOLDER``.
    Raises ``UserError`` for a study, scale, table or solver that there is not.
    """
    if scale not in study.scales:
        raise UserError(f"scale={scale}: {nearest(scale, study.scales)}")
    known = (*study.tables, *study.experiments, *(SOLVERS if study.tables else ()))
    for part in parts:
        if part not in known:
            raise UserError(f"{part}: {nearest(part, known)}")
    composition.compose(words)  # an option that there is not is a mistake, whatever is asked for
    if (
        parts
        and _shown(words)
        and not any(part in study.tables or _trains(study, part) for part in parts)
    ):
        raise UserError(
            f"{_shown(words)[0]}: {parts[0]} runs and trains nothing that an option could change"
        )
    for part, experiment in study.experiments.items():
        if part in parts or not parts:
            experiment.pieces(scale, words)  # naming them says what cannot be asked for
    chosen = [table for table in study.tables if wanted(table, parts)]
    solvers = [solver for solver in SOLVERS if solver in parts] or SOLVERS
    found: dict[str, list[Cell]] = {}
    for table in chosen:
        if "rows" in study.tables[table]:
            if set(parts) & set(SOLVERS) and table not in parts:
                continue  # a solver's column was asked for, and this table has none
            cells = listed_cells(study.reported, table, scale, words)
        else:
            cells = [
                cell
                for solver in solvers
                for cell in reconstruction_cells(study.reported, table, scale, solver, words)
            ]
        found[table] = [_looked_up(cell) for cell in cells]
    return found


def _looked_up(cell: Cell) -> Cell:
    asked = composition.compose(cell.words)
    return dataclasses.replace(
        cell, width=asked.target.width, result=main_job.finished(run_folder(asked))
    )


def wanted(part: str, parts: Sequence[str]) -> bool:
    """Whether a table or an experiment was asked for: it was named, or none was."""
    return part in parts or not set(parts) - set(SOLVERS)


def _trains(study: Study, part: str) -> bool:
    return part in study.experiments and study.experiments[part].options is not None


def run_missing(cells: Sequence[Cell], log: Path) -> None:
    """Run the cells that have no result, one bar over all of them; what each run prints goes to ``log``.

    Images that are missing are named before the first cell, and the cells that need them left out. A cell that fails is named and the
    others go on. Killed at any point and started again, it goes on where it was. Several processes share the cells.

    Raises ``RunError`` at the end if any failed, ``UserError`` if all that did were mistakes in what was asked.
    """
    missing = {cell.command: cell for cell in cells if cell.result is None}
    if not missing:
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    print(
        f"{len(missing)} of {len(cells)} cells to run; what each prints goes to {log}",
        file=sys.stderr,
        flush=True,
    )
    mistakes = _without_images(missing)
    failed = []
    results = [
        run_folder(composition.compose(cell.words)) / "result.json" for cell in missing.values()
    ]
    started = time.monotonic()
    with (
        tqdm(total=len(missing), desc="cells", disable=None) as bar,
        log.open("a", encoding="utf-8") as file,
    ):
        for command in locks.shared(missing, log.parent / ".locks"):
            cell = missing[command]
            bar.set_postfix_str(cell.label)
            print(f"\n{cell.command}", file=file, flush=True)
            before = time.monotonic()
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                try:
                    main_job.run(composition.compose(cell.words))
                    said = ""
                except Interrupted:
                    raise
                except UserError as error:
                    print(error, file=file)
                    said = str(error)
                    mistakes[said] = mistakes.get(said, 0) + 1
                except (
                    Exception
                ) as error:  # out of memory, a full disk: whatever it is, the other cells go on
                    traceback.print_exc(file=file)
                    said = str(error)
                    failed.append(f"{cell.command}: {error}")
            missing[command] = cell = _looked_up(cell)
            bar.update()
            outcome = (
                f"loss {mean_interval(cell.losses()).format()}"
                if cell.result
                else f"failed: {said}"
            )
            spent = estimate.duration(time.monotonic() - before)
            tqdm.write(
                f"{cell.label}: {outcome}, {spent}; {_left(results, time.monotonic() - started)}",
                file=sys.stderr,
            )
    _report(failed, mistakes, f"{len(missing) + sum(mistakes.values())} cells; see {log}")


def _without_images(missing: dict[str, Cell]) -> dict[str, int]:
    """Take out the cells whose images are not to be had, and say so; what is wrong with how many."""
    wrong: dict[DataSpec, str | None] = {}
    mistakes: dict[str, int] = {}
    for command, cell in list(missing.items()):
        spec = DataSpec(**dataclasses.asdict(composition.compose(cell.words).data))
        if spec not in wrong:
            try:
                load(spec)
                wrong[spec] = None
            except UserError as error:
                wrong[spec] = str(error)
        if (said := wrong[spec]) is not None:
            del missing[command]
            mistakes[said] = mistakes.get(said, 0) + 1
    for said, count in mistakes.items():
        others = f"the other {len(missing)} do" if missing else "none does"
        print(f"{count} cells cannot run, {others}: {said}", file=sys.stderr, flush=True)
    return mistakes


def _left(results: Sequence[Path], seconds: float) -> str:
    """How many cells are left, and how long they take if they take as long as those that were done since, by whomever."""
    done = sum(path.exists() for path in results)
    left = len(results) - done
    if not left:
        return "none is left"
    about = f", about {estimate.duration(seconds / done * left)}" if done else ""
    return f"{left} of {len(results)} left{about}"


def run_experiments(
    study: Study, scale: str, folder: Path, parts: Sequence[str] = (), words: Sequence[str] = ()
) -> None:
    """Compute what the study's experiments lack: those named in ``parts``, or all. One that fails is named and the others go on."""
    mistakes: dict[str, int] = {}
    failed = []
    for part, experiment in study.experiments.items():
        if part in parts or not parts:
            suffix = _suffix(words) if experiment.options else ""
            try:
                file = f"{part}-{scale}{suffix}.csv"
                compute_missing(
                    experiment, part, scale, folder / file, words, shipped(folder, file)
                )
            except Interrupted:
                raise
            except UserError as error:
                mistakes[f"{part}: {error}"] = 1
            except Exception as error:
                if not isinstance(error, RunError | OSError):
                    traceback.print_exc()
                failed.append(f"{part}: {error}")
    _report(failed, mistakes, "experiments")


def shipped(folder: Path, file: str) -> Path | None:
    """Where a study's file lies that ships with bnrecon: OUTPUTS/NAME, beside one's own OUTPUTS/studies/NAME; read and never written."""
    return folder.parent.parent / folder.name / file if folder.parent.name == "studies" else None


def _report(failed: list[str], mistakes: dict[str, int], among: str) -> None:
    lines = [
        *failed,
        *(
            f"{message}{f' ({count} times)' if count > 1 else ''}"
            for message, count in mistakes.items()
        ),
    ]
    if failed:
        print("\n".join(lines), file=sys.stderr)
        raise RunError(f"{len(failed) + sum(mistakes.values())} failed of {among}")
    if mistakes:
        raise UserError("; ".join(lines))


def _shown(words: Sequence[str]) -> list[str]:
    """Options that change what is computed: tables of different ones lie in different files."""
    return sorted(
        word for word in words if word.partition("=")[0].lstrip("+") not in schema.VOLATILE
    )


def _suffix(words: Sequence[str]) -> str:
    return f"-{digests.content_key({'words': _shown(words)})}" if _shown(words) else ""


def write_tables(
    study: Study,
    scale: str,
    found: dict[str, list[Cell]],
    folder: Path,
    parts: Sequence[str] = (),
    words: Sequence[str] = (),
) -> str:
    """Write each table as Markdown, CSV and LaTeX below ``folder``, experiments with their pictures; return what to print.

    Nothing is computed: what was not run says how to. ``words`` are the runs' further options.

    Raises ``UserError`` for files that are damaged, when all others are written and printed.
    """
    files.remove_leftovers(folder)
    suffix, shown = _suffix(words), _shown(words)
    options = f", {' '.join(shown)}" if shown else ""
    texts, mistakes = [], []
    for table, cells in found.items():
        about = study.tables[table]
        lines = frame(cells, absolute=scale == "paper", heading=about.get("heading", "target"))
        done = sum(cell.result is not None for cell in cells)
        text = (
            f"{study.paper}, {about['where']}: {about['title']}; scale {scale}{options}, {done} of {len(cells)} cells run\n\n"
            f"{tables.markdown(lines)}\n\n"
            "Loss is target minus rebuilt accuracy, in percent, paired by seed; ± is the half-width of the 95% Student-t interval over "
            "source seeds. Logits are compared on the images that went through the real source network."
            + _about_the_verdict(cells, scale)
            + f"\n{_origin(cells)}Command: `{shlex.join(('bnrecon', 'study', study.name, table, f'scale={scale}', *shown))}`."
        )
        texts.append(text)
        if not done:
            continue  # a table of nothing is not kept
        files.write_text(folder / f"{table}-{scale}{suffix}.md", text + "\n")
        runs = [
            run_folder(composition.compose(cell.words)).name if cell.result else ""
            for cell in cells
        ]
        files.write_text(
            folder / f"{table}-{scale}{suffix}.csv", lines.assign(run=runs).to_csv(index=False)
        )
        files.write_text(folder / f"{table}-{scale}{suffix}.tex", tables.latex(lines))
        if table in pictures.PICTURES:
            for kind in ("png", "svg"):
                pictures.write(table, cells, folder / f"{table}-{scale}{suffix}.{kind}")
    for part, experiment in study.experiments.items():
        if part in parts or not parts:
            given, ending, also = (shown, suffix, options) if experiment.options else ((), "", "")
            command = shlex.join(("bnrecon", "study", study.name, part, f"scale={scale}", *given))
            heading = f"{study.paper}, scale {scale}{also}, "
            stem = folder / f"{part}-{scale}{ending}"
            try:
                also_there = shipped(folder, f"{stem.name}.csv")
                text, damaged = experiments.write(
                    experiment, heading, command, stem, scale, words, also_there
                )
                texts.append(text)
                mistakes += [f"{why}; computed again by: {command}" for why in damaged]
            except (
                UserError
            ) as error:  # a table of another version: the others are still to be seen
                texts.append(f"{heading}{experiment.where}: {experiment.title}\n\n{error}")
                mistakes.append(str(error))
    if mistakes:
        print("\n\n\n".join(texts))
        raise UserError("; ".join(mistakes))
    return "\n\n\n".join(texts)


def _about_the_verdict(cells: list[Cell], scale: str) -> str:
    if not any(cell.reported for cell in cells):
        return ""
    text = " The verdict asks whether our interval and the paper's meet, the rounding of its print allowed for."
    return (
        text
        if scale == "paper"
        else text + " Accuracies themselves are not the paper's scale and are not compared."
    )


def _origin(cells: list[Cell]) -> str:
    """Where the finished cells' numbers come from, in one line: commits, devices, data, seconds."""
    results = [cell.result for cell in cells if cell.result]
    if not results:
        return ""
    words = {
        "Commits": sorted({result["commit"] or "installed" for result in results}),
        "devices": sorted({result["device"] for result in results}),
        "data": sorted({result["data"]["checksum"][:12] for result in results}),
    }
    text = "; ".join(f"{name} {', '.join(values)}" for name, values in words.items())
    trained = {result["target"]["folder"]: result["target"]["seconds"] for result in results}
    solving, training = sum(result["seconds"] for result in results), sum(trained.values())
    return f"{text}; {solving / 60:.0f} min solving and testing, {training / 60:.0f} min training. The CSV beside names each cell's run. "
